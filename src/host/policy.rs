//! The tuning numbers of the host's executor. `cuda::launch::policy` has those of a device.

policy! {
    /// The bytes read and written below which starting other threads costs more than it saves, and a batch is made
    /// without a plan. Zen 4: a thread copies 2 MiB in 97 us, and comes 70 to 100 us after it is called if it sleeps.
    /// Columns of 256 KiB gained 4 % by a thread that copies ahead, and lost more on a busy machine.
    small_bytes: u64 = 1 << 20,
    /// The number of rows from which on rows of a table are stacked by a plan, as one sample, however small they are.
    /// Zen 4, a stack of slices of int32: 256 rows take 1.1 us without a plan, 3 rows 0.7 with one.
    table_rows: usize = 256,
    /// Tiles are at least this large, so that a tile's set-up does not show. Rows that read and write less are never cut
    /// into tiles, so that a list of them needs no plan below `streaming_bytes`, and below `min_streamed_run_bytes` a row none at
    /// all. Callgrind, rows of up to 64 bytes padded by a plan: 3.4 times the instructions a byte.
    min_tile_bytes: u64 = 64 << 10,
    /// Tiles are at most this large, so that threads end at about the same time.
    max_tile_bytes: u64 = 1 << 20,
    /// Outputs of at least this size leave the caches before they are read, so they are written around the caches. Zen 4 has
    /// 32 MiB of L3: 51 MB take 5.4 ms streamed and 7.6 plain. Sapphire Rapids, 154 MB normalised: 5.1 to 5.6 and 8.9.
    streaming_bytes: u64 = 32 << 20,
    /// Shorter runs are not: the ends of each, which no whole vector covers, cost more than the cache lines saved. Measured on
    /// Zen 4, 51 MB: 512-byte runs 10.9 ms streamed and 6.4 ms plain, 2048-byte runs 5.4 and 7.6.
    min_streamed_run_bytes: u64 = 2048,
    /// Rows that are no longer than this many elements, a pixel's channels for example, are not worth a call each. Zen 4, CHW to
    /// HWC, rows of three: 0.03 to 0.05 of memory speed by a call each, 0.59 along their neighbours.
    short_row: u64 = 8,
    /// The same of rows whose neighbours are nearer to each other than their own elements, as the channels of CHW are. Zen 4, CHW to
    /// HWC, 12 and 16 channels: 0.25 of the time of a call each if they are normalised, 0.6 to 0.8 if they are moved or cast.
    short_row_across: u64 = 16,
    /// Rows of more elements than this are worth a call each if they lie in order.
    short_run: usize = 16,
    /// Rows of a block of a transposition that are further apart are put together before they are written: a line that is written
    /// by parts would leave the first cache in between. Elements of four bytes and more, on Sapphire Rapids: rows 4 KiB apart 0.72
    /// and 0.46 ns an element, 800 bytes apart 0.44 and 0.45.
    staged_spread_bytes: usize = 15 << 10,
    /// Elements that a row is cut into, so that what is between two passes stays in the first-level cache.
    block_elems: usize = 256,
    /// Neighbours of a short row that are read at once; their outputs stay in that cache.
    short_block_elems: usize = 256,
    /// Bytes of a row that are made at once to be written around the caches; a multiple of a cache line. Sapphire Rapids, two
    /// threads, 256 images to float32 planes: 7.2 ms in such blocks, 12.1 through the caches.
    streamed_block_bytes: usize = 2048,
    /// Rows of fewer such blocks go through the caches. Zen 4, two threads, 100 MB, casts of rows of 4 KiB 0.60 to 1.05 of the time of one
    /// block, of 6 KiB 0.75 to 1.07; with four, rows of 8 KiB 0.82 to 1.19, with eight, rows of 12 KiB up to 1.5.
    min_streamed_blocks: usize = 3,
    /// How far ahead a copy around the caches fetches: a few lines beyond what the stores in flight cover.
    streamed_ahead_bytes: usize = 1024,
    /// Bytes of a row read backwards that are turned round at once. Zen 4, images mirrored left to right to float16: 0.7 of the time
    /// of blocks of half the size.
    reversed_block_bytes: usize = 8192,
    /// How many rows behind the one just read those that go down in memory are asked for. Zen 4, one thread, 256 images turned
    /// upside down: to float16 planes 7.6 ms, 19.1 without.
    reversed_rows_ahead: isize = 2,
    /// How many rows ahead memory is asked for, in batches without a plan. Zen 4, a loop over 1024 scattered rows of 68 bytes,
    /// caches emptied: 37 us with 8, 16, 32 or 64 rows, 39 without.
    rows_ahead: usize = 16,
    /// Rows that follow each other in memory are one copy from this many on. Zen 4, 100 000 Arrow lists of 1 to 20 int32: 1.1 ms,
    /// and 4.0 row by row; 4096 in runs of 4 or 8 rows 0.65 to 0.69 of the time of runs from 16 rows on.
    min_run_rows: usize = 4,
    /// The number of rows that are written without a look for runs after a row that belonged to none. Callgrind, rows
    /// that are apart: 0.7 % more instructions.
    rows_between_looks: usize = 128,
    /// The most bytes of a row that one prefetch asks for.
    prefetched_bytes: usize = 1024,
    /// More channels than this are walked through in place; up to here a few turns of them are laid out on the stack.
    max_tiled_channels: usize = 32,
    /// Bytes that are copied ahead at a time: few enough that the last ones do not keep the others waiting.
    ahead_bytes: usize = 32 << 10,
    /// Longer rows take longer to copy than to find, so they are not copied ahead. Zen 4, 4096 warm tensors of 512
    /// bytes: 0.29 ms copied ahead, 0.34 without.
    max_ahead_row_bytes: usize = 64 << 10,
    /// More threads that copy ahead would only wait for rows. Two cores never reach it: the slot `ahead` of scripts/gpu/slots.sh
    /// times one to three.
    max_ahead_helpers: usize = 3,
    /// Bytes of free blocks a pool keeps by default: a limit of memory. Sapphire Rapids, `torch.stack` of 38.5 MB: 19 ms into
    /// fresh pages, 6 to 8 into used ones.
    pool_bytes: u64 = 1 << 30,
    /// Smaller blocks are kept by their size, in slots that are taken without a lock. Callgrind, 256 rows by indices: 9 673
    /// instructions, and 10 550 with blocks of the allocator.
    min_locked_bytes: usize = 64 << 10,
    /// Blocks kept in slots of one size: as many as the fields of a common tree, all of which are in use at once. A limit of
    /// memory: all slots hold 6 MB.
    slots_of_a_size: usize = 8,
    /// Blocks of this size and more are aligned for huge pages, and the kernel is asked for them: a huge page of x86-64.
    huge_page_bytes: usize = 2 << 20,
}
