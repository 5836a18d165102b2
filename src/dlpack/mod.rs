//! DLPack.
