//! The message that is sent in place of a batch: the positions of its tensors, in a few bytes.
#![allow(unsafe_code)] // A call of the system.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::memory::Memory;
use crate::tensor::{DType, Dims, Layout, MAX_NDIM};

/// The pool that a message is from, and how its memory is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub key: u128,
    pub bytes: u64,
    pub process: u64,
    pub file: u64,
    /// Device and inode of the file.
    pub inode: [u64; 2],
}

impl Origin {
    /// The origin in a pool that the reader has mapped already.
    pub(super) fn without_file(memory: &Memory) -> Origin {
        let (key, bytes) = (memory.key(), memory.bytes());
        Origin { key, bytes, process: u64::from(std::process::id()), file: NO_FILE, inode: [0; 2] }
    }

    /// The origin in a pool by its descriptor; an error of the system if it cannot be looked at.
    pub(super) fn new(memory: &Memory, file: &OwnedFd) -> io::Result<Origin> {
        Ok(Origin {
            key: memory.key(),
            bytes: memory.bytes(),
            process: u64::from(std::process::id()),
            file: file.as_raw_fd() as u64,
            inode: inode_of(|stat| {
                // SAFETY: a struct that the call fills in.
                unsafe { libc::fstat(file.as_raw_fd(), stat) }
            })?,
        })
    }
}

/// No descriptor.
const NO_FILE: u64 = u64::MAX;

/// Device and inode, by a call that fills the struct in.
pub(super) fn inode_of(ask: impl FnOnce(&mut libc::stat) -> i32) -> io::Result<[u64; 2]> {
    // SAFETY: the struct has plain numbers alone, for which zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    match ask(&mut stat) {
        0 => Ok([stat.st_dev, stat.st_ino]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A tensor in one of a message's blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The position of its claim.
    pub claim: u32,
    /// Bytes from the start of the block to the first element.
    pub offset: u64,
    pub dtype: DType,
    pub layout: Layout,
}

/// The message of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub origin: Origin,
    /// The claims and their numbers.
    pub claims: Vec<(u32, u64)>,
    pub tensors: Vec<Placed>,
}

impl Message {
    /// The bytes that [`Message::decode`] takes, if all dtypes have this machine's byte order;
    /// strides of compact layouts are left out.
    pub fn encode(&self) -> Vec<u8> {
        let Origin { key, bytes, process, file, inode } = self.origin;
        let mut out = Vec::with_capacity(72 + 16 * self.claims.len() + 40 * self.tensors.len());
        out.extend(key.to_le_bytes());
        let mut put = |word: u64| out.extend(word.to_le_bytes());
        [bytes, process, file, inode[0], inode[1]].into_iter().for_each(&mut put);
        put(self.claims.len() as u64 | (self.tensors.len() as u64) << 32);
        for &(claim, number) in &self.claims {
            put(u64::from(claim));
            put(number);
        }
        for Placed { claim, offset, dtype, layout } in &self.tensors {
            let is_compact = layout.is_compact();
            let (dtype, ndim) = (*dtype as u64, layout.ndim() as u64);
            put(u64::from(*claim) << 32 | dtype << 16 | u64::from(is_compact) << 8 | ndim);
            put(*offset);
            let strides = if is_compact { &[] } else { layout.strides() };
            layout.shape().iter().chain(strides).for_each(|&dim| put(dim as u64));
        }
        out
    }

    /// The message that these bytes are, to the last one; `None` if they are none: too few or too
    /// many, an unknown dtype, an impossible layout, or a tensor of a claim that is not in the
    /// message. Whether the pool and its blocks exist is not checked.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (key, rest) = bytes.split_first_chunk()?;
        let mut words = rest.chunks_exact(8);
        let mut next =
            || words.next().map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])));
        let origin = Origin {
            key: u128::from_le_bytes(*key),
            bytes: next()?,
            process: next()?,
            file: next()?,
            inode: [next()?, next()?],
        };
        let counts = next()?;
        let mut claims = Vec::new();
        for _ in 0..counts as u32 {
            claims.push((u32::try_from(next()?).ok()?, next()?));
        }
        let mut tensors = Vec::new();
        for _ in 0..counts >> 32 {
            let head = next()?;
            let claim = (head >> 32) as u32;
            let dtype = *DType::ALL.get((head >> 16 & 0xffff) as usize)?;
            let (offset, ndim) = (next()?, (head & 0xff) as usize);
            if ndim > MAX_NDIM || claim as usize >= claims.len() {
                return None;
            }
            let mut dims =
                || (0..ndim).map(|_| next().map(|dim| dim as i64)).collect::<Option<Dims>>();
            let shape = dims()?;
            let layout = match head >> 8 & 0xff {
                0 => Layout::try_new(dtype, &shape, Some(&dims()?)),
                _ => Layout::compact(dtype, &shape),
            };
            tensors.push(Placed { claim, offset, dtype, layout: layout.ok()? });
        }
        words.next().is_none().then_some(Message { origin, claims, tensors })
    }
}
