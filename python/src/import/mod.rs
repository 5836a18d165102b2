//! Import: any array-like to a sample, by the fastest route that its type has.

pub(crate) mod array_interface;
pub(crate) mod borrowed;
pub(crate) mod columns;
pub(crate) mod exchange;
pub(crate) mod importer;
pub(crate) mod integers;
pub(crate) mod keepers;
pub(crate) mod number_words;
pub(crate) mod numpy;
pub(crate) mod numpy_words;
pub(crate) mod places;
pub(crate) mod protocols;
pub(crate) mod read;
mod reader;
pub(crate) mod routes;
pub(crate) mod rows;
pub(crate) mod tensor;
pub(crate) mod torch_dense;
pub(crate) mod torch_words;
