//! Readers of private layouts: words of objects of CPython and torch that no header promises. All of them are here, and all have
//! one switch, `WINDROW_PRIVATE_LAYOUTS=0`, which is read when the package is imported. Results are the same without them.
//!
//! A reader is on only for releases it was tested with, [`PYTHONS`] and [`TORCHES`], and only if it agrees with what the library
//! itself says of objects made for it. `python -m windrow doctor` says whether they are on, and why not.
//!
//! | layout | file | who uses it | the official call | ns a sample, with it and without |
//! |---|---|---|---|---:|
//! | `PyLongObject`, `PyFloatObject`, `PyListObject`, `PyTupleObject` | `pyint_layout` | `import/rows`: samples that are lists of numbers | `PyLong_AsLongLong`, `PyFloat_AsDouble` for each | 16 ints: 63, 302 |
//! | `PyDictObject` | `dict_entries` | `trees/dicts`: asks for memory ahead | none | 4096 dicts of 8 arrays, not in the caches: 420, 492; of 6, any of 120 000: 650, 930 |
//! | `TensorImpl` | `torch_layout` | `import/column_reader`, `import/exchange`: a dense tensor of the host's | the exchange table of its class | 20, 98 |
//! | `AutogradMeta` | `torch_layout` | every import of a torch tensor | `requires_grad`, `unpack_dual()`, `is_neg()`, `is_conj()` | 20, 350 |
//! | `StorageImpl` | `torch_layout` | `import/storages`: its Python object, its address while a list holds it, what releases it | `untyped_storage()`, `const_data_ptr()` of a tensor over it | in a list that is kept: 46, 92 |
//!
//! Measured on a Xeon (Sapphire Rapids), CPython 3.11 and torch 2.15, least of interleaved runs. All of torch's together: a stack of
//! 256 tensors takes 5.5 us with them and 106 without, a `SampleList` of 4096 0.18 and 3.2 ms. Checked, by the tests of words, on
//! Linux x86-64 with CPython 3.11 and every minor release of torch from 2.10 to 2.15; on the other releases of CPython the check
//! when the reader is made.
//!
//! NumPy's array struct and torch's exchange table are not here: both are official, and always used.

pub(crate) mod dict_entries;
pub(crate) mod pyint_layout;
pub(crate) mod torch_layout;

use std::sync::LazyLock;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::ground::modules::module;

/// The minor releases of CPython 3 that the readers were tested with.
const PYTHONS: std::ops::RangeInclusive<u8> = 9..=13;

/// Whether nothing else runs Python code, and so releases objects, while this thread is attached: objects of interpreters without
/// that lock have more words.
pub(crate) const HAS_LOCK: bool = size_of::<ffi::PyObject>() == 2 * size_of::<usize>();

/// Why a reader is off.
type Reason = String;

static IS_SWITCHED_ON: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("WINDROW_PRIVATE_LAYOUTS").is_none_or(|value| value != "0"));

/// Reads the switch: the environment may change later.
pub(crate) fn read_switch() {
    LazyLock::force(&IS_SWITCHED_ON);
}

/// Refuses all readers where the switch is off.
fn check_switch() -> Result<(), Reason> {
    match *IS_SWITCHED_ON {
        true => Ok(()),
        false => Err("WINDROW_PRIVATE_LAYOUTS=0".to_owned()),
    }
}

/// Refuses readers of CPython's objects where the switch is off, without a lock, and for releases out of [`PYTHONS`].
fn check_python(py: Python<'_>) -> Result<(), Reason> {
    check_switch()?;
    let version = py.version_info();
    match () {
        () if !HAS_LOCK => Err("an interpreter without a global lock".to_owned()),
        () if version.major == 3 && PYTHONS.contains(&version.minor) => Ok(()),
        () => Err(format!("tested with 3.{} to 3.{}", PYTHONS.start(), PYTHONS.end())),
    }
}

/// Name and version of CPython, and of torch if it is imported, each with whether its layouts are read: "on", or "off"
/// and why.
#[pyfunction]
pub(crate) fn _private_layouts(py: Python<'_>) -> PyResult<Vec<(String, String)>> {
    let version = py.version_info();
    let python = format!("CPython {}.{}", version.major, version.minor);
    let mut found = vec![(python, state(pyint_layout::reader(py)))];
    if let Some(torch) = module(py, "torch")? {
        let name = format!("torch {}", torch.getattr("__version__")?);
        found.push((
            name,
            state(torch_layout::reader(py).unwrap_or(&Err("not imported".to_owned()))),
        ));
    }
    Ok(found)
}

/// "on", or "off" and why.
fn state<T>(reader: &Result<T, Reason>) -> String {
    match reader {
        Ok(_) => "on".to_owned(),
        Err(reason) => format!("off, {reason}"),
    }
}
