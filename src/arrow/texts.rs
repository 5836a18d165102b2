//! Strings and bytes: where each is.
#![allow(unsafe_code)] // Foreign buffers are read here.

use super::array_part::{broken, ArrayPart, PartError};
use crate::tensor::{out_of_memory, Device};

/// Appends the address and the bytes of each row of an array with offsets; none after a fault: nulls, offsets that go back, NULL
/// for bytes. The address of an empty row may be NULL.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
pub(super) unsafe fn push_texts(
    texts: &mut Vec<(*const u8, usize)>,
    part: ArrayPart<'_>,
    wide: bool,
) -> std::result::Result<(), PartError> {
    part.expect(3, 0)?;
    // SAFETY: the caller's promise; the buffers were just counted.
    let (offsets, data) = unsafe {
        part.refuse_null()?;
        (part.offsets(wide)?, part.buffer(2))
    };
    if data.is_null() && offsets.first() != offsets.last() {
        return Err(broken("a buffer of bytes", "NULL").into());
    }
    let len = part.len as usize;
    texts.try_reserve(len).map_err(|_| out_of_memory::<(*const u8, usize)>(len))?;
    texts.extend(
        offsets.windows(2).map(|bounds| {
            (data.wrapping_add(bounds[0] as usize), (bounds[1] - bounds[0]) as usize)
        }),
    );
    Ok(())
}

/// Appends the address and the bytes of each row of an array of views. A view that leaves its buffer is an error at its row,
/// after the rows before it are appended.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
pub(super) unsafe fn push_views(
    texts: &mut Vec<(*const u8, usize)>,
    part: ArrayPart<'_>,
) -> std::result::Result<(), PartError> {
    /// Bytes of a view, and the most bytes of a text that is stored within it.
    const VIEW_BYTES: usize = 16;
    const INLINE_BYTES: usize = 12;
    let num_data = part.array.n_buffers.saturating_sub(3);
    if num_data < 0 {
        return Err(broken("an Arrow array of 3 buffers", part.array.n_buffers.to_string()).into());
    }
    part.expect(num_data + 3, 0)?;
    // SAFETY: the caller's promise; the buffers were just counted.
    let (views, sizes) = unsafe {
        part.refuse_null()?;
        (part.required_buffer(1)?, part.buffer(num_data as usize + 2).cast::<i64>())
    };
    let len = part.len as usize;
    texts.try_reserve(len).map_err(|_| out_of_memory::<(*const u8, usize)>(len))?;
    debug_assert_eq!(part.device, Device::Cpu);
    for row in 0..part.len {
        let view = views.wrapping_add((part.first() + row) as usize * VIEW_BYTES);
        // SAFETY: the host reads a view of the array, which has 16 bytes.
        let word = |at: usize| i64::from(unsafe { view.add(at).cast::<i32>().read_unaligned() });
        let len = word(0);
        let refused = |got: String| broken("a view within its buffer", got).at_index(row as usize);
        let begin = match len {
            0.. if len as usize <= INLINE_BYTES => view.wrapping_add(4),
            0.. => {
                let (buffer, offset) = (word(8), word(12));
                if !(0..num_data).contains(&buffer) || sizes.is_null() {
                    return Err(refused(format!("one in buffer {buffer} of {num_data}")).into());
                }
                // SAFETY: the last buffer has a size for each of these buffers.
                let size = unsafe { sizes.add(buffer as usize).read_unaligned() };
                // SAFETY: the position is that of one of the buffers.
                let data = unsafe { part.buffer(buffer as usize + 2) };
                if offset < 0 || offset + len > size || data.is_null() {
                    return Err(refused(format!("{len} bytes from {offset} of {size}")).into());
                }
                data.wrapping_add(offset as usize)
            }
            _ => return Err(refused(format!("{len} bytes")).into()),
        };
        texts.push((begin, len as usize));
    }
    Ok(())
}
