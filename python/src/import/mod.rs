//! Import: any array-like to a sample, in one of two ways.
//!
//! - **Columns** (`column_reader`): many NumPy arrays or dense torch tensors of one class, read from their structs without running Python
//!   code, without a reference to each, and by several threads if they are the leaves of containers. Short lists of a call are one
//!   column, too.
//! - **Items** (`items`): everything else, one object after the other, by the route of its class (`routes`), which is found once.
//!
//! Beside them stands one branch, for stacks of 1 MiB or more: rows that need no Python code to be read are copied by another thread
//! while the next ones are read (`Importer::ahead`). 4096 rows of 512 bytes take 174 us with it and 204 without as arrays, 201 and
//! 237 as tensors, on two cores.
//!
//! | object | route: what is tried, in this order | kept in a list of 4096 | in a stack of 256 | alone (`asarray`) |
//! |---|---|---:|---:|---:|
//! | NumPy array | column; its struct (C ABI); `__array_struct__` if NumPy is neither 1 nor 2 | 25 | 17 | 540 |
//! | subclass that says of its memory what NumPy says | `__array_struct__` | 99 | 111 | 590 |
//! | masked array | refused if a value is masked; else as other objects | 5000 | 2200 | 4300 |
//! | NumPy scalar | its buffer, copied | 61 | 56 | 750 |
//! | Python bool, int, float | its value, copied | 51 | 47 | 740 |
//! | list or tuple of 16 Python numbers | words (`private_layouts`), else each number; copied | 63 | 56 | 740 |
//! | dense torch tensor of the host's, Parameter | column; words (`private_layouts`); exchange table | 46 | 20 | 540 |
//! | other torch tensor: of 6 dims, on a device | exchange table | 131 | 122 | 680 |
//! | torch subclass | exchange table, an owned tensor if it is kept | 255 | 172 | 1000 |
//! | any class with an exchange table, such as TVM FFI's | exchange table, an owned tensor if it is kept | 1800 | 450 | 2000 |
//! | `wr.Tensor` | its fields | 72 | 62 | 330 |
//! | `wr.Batch`, which stands for its data | its fields | 63 | 60 | 120 |
//! | JAX array | `__dlpack__` | 5600 | 4900 | 6800 |
//! | bytearray, memoryview, `array.array` | `__dlpack__`, `__cuda_array_interface__`, buffer, `__array_interface__`: the first that works | 1760 | 1000 | 1780 |
//! | object with `__array_interface__` alone, such as a PIL image | as above | 2600 | 1500 | 2200 |
//! | JAX tracer, a class, anything else | TypeError | | | |
//!
//! Nanoseconds for each object of 16 float32, on a Xeon (Sapphire Rapids), CPython 3.11, NumPy 2.4, torch 2.15, least of interleaved
//! runs.
//!
//! For each route: a sample that is kept is held with the owner of its memory, a torch tensor by its storage, and one whose
//! owner moves it afterwards is refused when it is used (`storages`). Memory that must not be written to is marked so: read-only
//! arrays and buffers, JAX arrays and DLPack's flag; the table of torch never has it. On a device, work on a sample waits for the
//! stream on which its library works now, which the exchange table says, or which `__dlpack__(stream=)` and
//! `__cuda_array_interface__` order.

pub(crate) mod array_interface;
pub(crate) mod column_reader;
pub(crate) mod exchange;
pub(crate) mod importer;
pub(crate) mod integers;
pub(crate) mod items;
pub(crate) mod keepers;
pub(crate) mod numpy;
pub(crate) mod numpy_layout;
pub(crate) mod protocols;
pub(crate) mod routes;
pub(crate) mod rows;
pub(crate) mod storages;
pub(crate) mod tensor;
