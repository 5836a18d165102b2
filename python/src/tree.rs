//! `collate`: a list of trees to one tree of batches, all leaves in one plan.

use std::rc::Rc;
use std::sync::Arc;

use pyo3::exceptions::{PyAttributeError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use windrow::{Batch, RowsAhead, Stage, Stream};

use crate::arrow::{is_arrow, read, ArrowColumn, Content};
use crate::assemble::{run, Arena, Job};
use crate::batch::PyBatch;
use crate::containers::{
    check_depth, check_known, check_list, fields_of, fold, in_place_of, is_mapping, is_text,
    list_of, open, opener_of, Container, Opened,
};
use crate::errors::{at, class_name, in_words, not_array_like, Whose};
use crate::import::{room_for, Reading};
use crate::logging::Records;
use crate::options::{unfit, Options};
use crate::rows::{is_row, row_cure};
use crate::samples::{entries, items_of, no_list, Imported};
use crate::specs::Specs;
use crate::tensor::PyTensor;

/// A node of the tree of results.
enum Node<'py> {
    /// The position of a tensor leaf.
    Leaf(usize),
    /// Strings and bytes, as a list.
    Pass(Bound<'py, PyList>),
    Container(Container<'py>),
}

/// The same place of every sample, not yet looked at.
struct Branch<'py> {
    samples: Vec<Bound<'py, PyAny>>,
    path: String,
    out: Option<Bound<'py, PyAny>>,
    depth: usize,
    /// What the class of the container around it says of it.
    within: Within<'py>,
}

impl<'py> Branch<'py> {
    fn child(
        samples: Vec<Bound<'py, PyAny>>,
        path: String,
        out: Option<Bound<'py, PyAny>>,
        depth: usize,
    ) -> Branch<'py> {
        Branch { samples, path, out, depth: depth + 1, within: Within::default() }
    }
}

/// What a class says of the leaves in it.
#[derive(Clone, Default)]
struct Within<'py> {
    /// The class whose leaves are torch tensors, if they are.
    tensors: Option<Rc<str>>,
    /// Form and arguments of this one.
    form: Option<(String, Bound<'py, PyDict>)>,
}

/// What a call of `collate` is given.
enum Source<'py> {
    Samples(Vec<Bound<'py, PyAny>>),
    /// The columns of a table, whose rows are trees of dicts.
    Columns(Vec<ArrowColumn<'py>>),
}

impl Source<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Source::Samples(samples) => samples.is_empty(),
            Source::Columns(columns) => columns.iter().all(|column| match &column.content {
                Content::Samples(samples) => samples.list.is_empty(),
                Content::Texts(texts) => texts.is_empty(),
            }),
        }
    }
}

/// Walks all trees at once.
struct Walk<'a, 'py> {
    py: Python<'py>,
    /// Options of leaves that no spec names.
    common: Option<&'a Bound<'py, PyDict>>,
    stream: Option<Stream>,
    may_start: bool,
    specs: Specs<'a, 'py>,
    jobs: Vec<Job>,
}

/// A list of trees to one tree of the same shape, every tensor leaf a `Batch`, in one call.
///
/// Args:
///     samples: a list of trees of dict (and other mappings), list, tuple, namedtuple, dataclass, attrs and pydantic
///         classes, TensorDict and tensorclass, graphs of PyTorch Geometric, PyTrees of torch or optree, and classes of `register_node`, which
///         keep their types; `Data` and `HeteroData` become a `Batch`. In those of tensordict and PyTorch Geometric results are
///         torch tensors. str and bytes leaves become lists; Python floats float64, ints int64. Or an Arrow
///         table or record batch, of pyarrow, polars, pandas or others: the list of its rows, dicts of its columns.
///     spec (dict): leaf path, with globs, to `Stack`, `Concat`, `Pad` or
///         `Ragged`. An exact path goes before a glob, an earlier glob before a later one.
///         Unnamed leaves are stacked. A list or tuple of Python numbers is a container of as many
///         leaves, and one leaf, of one dim, where a key is exactly its path.
///     sep (str): joins the keys of a path.
///     arena (bool): all tensors of all leaves in one allocation, each at a multiple of 64 bytes (256 in
///         page-locked memory and on a device), zeros between them: `Batch.arena`. One copy moves the
///         whole tree, and it pickles as one buffer; `Batch.arena_layout` says what is where.
///     out: a tree of the same shape to write to.
///     common: as for `stack`; a spec's own arguments go first.
///
/// Raises:
///     ValueError: ``arena=True`` with ``out`` or ``copy=False``. DeviceError: with leaves in several places.
///     KeyError, ValueError, TypeError: a missing key, an uneven length, a None leaf, with the path
///         and the sample; and whatever the leaf's form raises, with ``.path``.
///     TypeError: a mapping or text in place of the list; a container of a class that is not registered, with
///         what to give instead. ValueError: a spec other than `Stack` within TensorDict and tensorclass.
///     ValueError: a spec that names no leaf, or only leaves of str and bytes.
///     RecursionError: trees of more than 256 levels, as those of a container that holds itself.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}])
///     >>> memoryview(batch["x"][1]).tolist(), batch["id"]
///     ([2.5, 4.5], ['a', 'b'])
///     >>> batch = wr.collate([{"ids": [1, 2]}, {"ids": [3]}], {"ids": wr.Pad()})
///     >>> memoryview(batch["ids"]).tolist()
///     [[1, 2], [3, 0]]
///     >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}], arena=True)
///     >>> batch["x"][0].arena.shape, batch["x"][1].arena_layout
///     ((128,), {'data': ('float64', (2,), 64)})
#[pyfunction]
#[pyo3(signature = (samples, spec = None, *, sep = ".", arena = false, **common), text_signature = "(samples, spec=None, *, sep='.', arena=False, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn collate<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    arena: bool,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _records = Records::of_call(py);
    let options = Options::parse("collate", common)?;
    let span = options.engine.enter(Stage::Import);
    let (tree, mut jobs) = import(samples, spec, sep, common, &options, !arena)?;
    let batches = run(py, &options.engine, &mut jobs, Arena::of(arena), span.end())?;
    let arena = batches.iter().find_map(Batch::arena);
    let arena = arena.map(|arena| Bound::new(py, PyTensor::from(arena.clone()))).transpose()?;
    let batches = batches.into_iter();
    let batches = batches.map(|batch| Bound::new(py, PyBatch::in_arena(batch, arena.as_ref())));
    build(&tree, &batches.collect::<PyResult<Vec<_>>>()?)
}

/// The leaves that a call of `collate` with these arguments would plan, and whether in an arena. Nothing
/// is copied yet.
pub(crate) fn jobs_of(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Vec<Job>, bool)> {
    let common = kwargs.map_or_else(|| Ok(PyDict::new(samples.py())), |kwargs| kwargs.copy())?;
    let take = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        let item = common.get_item(name)?;
        if item.is_some() {
            common.del_item(name)?;
        }
        Ok(item.filter(|item| !item.is_none()))
    };
    let (spec, sep, arena) = (take("spec")?, take("sep")?, take("arena")?);
    let sep = match sep {
        Some(sep) => sep.extract().map_err(|error| unfit(&sep, "sep", "a string", error))?,
        None => ".".to_owned(),
    };
    let in_arena = match arena {
        Some(arena) => arena.extract().map_err(|error| unfit(&arena, "arena", "a bool", error))?,
        None => false,
    };
    let options = Options::parse("collate", Some(&common))?;
    let (_, jobs) = import(samples, spec.as_ref(), &sep, Some(&common), &options, false)?;
    Ok((jobs, in_arena))
}

/// Reads all leaves. `may_start`: whether rows may be copied ahead of the plan.
fn import<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    common: Option<&Bound<'py, PyDict>>,
    options: &Options<'py>,
    may_start: bool,
) -> PyResult<(Vec<Node<'py>>, Vec<Job>)> {
    let py = samples.py();
    let source = match is_arrow(samples)? {
        true => Source::Columns(read(samples, sep, "")?.columns),
        false => {
            check_list(samples)?;
            Source::Samples(items_of(samples).map_err(|error| no_list(samples, error))?)
        }
    };
    if source.is_empty() {
        return Err(PyValueError::new_err("an empty list of samples makes no batch"));
    }
    let common = match common {
        Some(common) => {
            let common = common.copy()?;
            // The tree of outputs is taken apart on the way down.
            if common.contains("out")? {
                common.del_item("out")?;
            }
            Some(common)
        }
        None => None,
    };
    let specs = Specs::new(spec, sep)?;
    let (stream, common) = (options.stream, common.as_ref());
    let mut walk = Walk { py, common, stream, may_start, specs, jobs: Vec::new() };
    let tree = match source {
        Source::Samples(samples) => walk.tree(samples, options.out.clone())?,
        Source::Columns(columns) => walk.table(columns, options.out.clone())?,
    };
    walk.specs.all_used()?;
    Ok((tree, walk.jobs))
}

impl<'py> Walk<'_, 'py> {
    /// All nodes, each before its children. Walked without recursion: a thread's stack may be small.
    fn tree(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Node<'py>>> {
        let mut nodes = Vec::new();
        let within = Within::default();
        let mut open = vec![Branch { samples, path: String::new(), out, depth: 0, within }];
        while let Some(branch) = open.pop() {
            check_depth(branch.depth, &branch.path)?;
            let (first_child, tensors) = (open.len(), branch.within.tensors.clone());
            nodes.push(self.node(branch, &mut open)?);
            for child in &mut open[first_child..] {
                let own = &mut child.within.tensors;
                *own = own.take().or_else(|| tensors.clone());
            }
            open[first_child..].reverse();
        }
        Ok(nodes)
    }

    /// One node; its children go to `open`.
    fn node(&mut self, branch: Branch<'py>, open: &mut Vec<Branch<'py>>) -> PyResult<Node<'py>> {
        let first = branch.samples[0].clone();
        if is_text(&first) {
            if let Some(index) = branch.samples.iter().position(|sample| !is_text(sample)) {
                return Err(uneven(&branch.path, index, &first, &branch.samples[index]));
            }
            self.specs.pass(&branch.path);
            return Ok(Node::Pass(list_of(self.py, branch.samples)?));
        }
        if let Some(opener) = opener_of(&first, false)? {
            return self.opened(&opener, branch, open).map(Node::Container);
        }
        if is_mapping(&first)? {
            return self.mapping(&first, &branch, open).map(Node::Container);
        }
        if is_list_or_tuple(&first) && !self.specs.names(&branch.path) {
            return self.sequence(&first, &branch, open).map(Node::Container);
        }
        if let Some(container) = self.dataclass(&first, &branch, open)? {
            return Ok(Node::Container(container));
        }
        match opener_of(&first, true)? {
            Some(opener) => self.opened(&opener, branch, open).map(Node::Container),
            None => self.leaf(branch),
        }
    }

    /// A container by its class, as `windrow._nodes` takes it apart.
    fn opened(
        &self,
        opener: &Bound<'py, PyAny>,
        branch: Branch<'py>,
        open_branches: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container<'py>> {
        let Branch { samples, path, out, depth, .. } = branch;
        let class = samples[0].get_type();
        if let Some(index) = samples.iter().position(|sample| !sample.get_type().is(&class)) {
            return Err(uneven(&path, index, &samples[0], &samples[index]));
        }
        let out = match out {
            Some(out) if out.get_type().is(&class) => {
                open(opener, vec![out], &path, self.specs.sep())?.children.pop()
            }
            out => out,
        };
        let Opened { children, close, forms, tensors } =
            open(opener, samples, &path, self.specs.sep())?;
        let (Some(first), tensors) = (children.first().cloned(), tensors.map(Rc::from)) else {
            return Err(PyTypeError::new_err(format!("an empty column{}", at(&path))));
        };
        let first_child = open_branches.len();
        let branch = Branch { samples: children, path, out, depth, within: Within::default() };
        let Container::Mapping(_, keys) = self.mapping(&first, &branch, open_branches)? else {
            return Err(PyTypeError::new_err("children of a class are a dict"));
        };
        for (key, child) in keys.iter().zip(&mut open_branches[first_child..]) {
            let form = forms.as_ref().map_or(Ok(None), |forms| forms.get_item(key))?;
            let form = form.map(|form| form.extract()).transpose()?;
            child.within = Within { tensors: tensors.clone(), form };
        }
        Ok(Container::Node(close, keys))
    }

    fn mapping(
        &self,
        first: &Bound<'py, PyAny>,
        branch: &Branch<'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container<'py>> {
        let Branch { samples, path, out, .. } = branch;
        if first.cast_exact::<PyDict>().is_err() {
            check_known(&first.get_type(), path, true)?;
        }
        let keys = entries(first, Ok)?;
        let mut columns = Vec::new();
        for _ in &keys {
            columns.push(room_for(samples.len())?);
        }
        // Sample by sample: a mapping is asked for all its items while it is in a cache.
        for (index, sample) in samples.iter().enumerate() {
            // Plain dicts are asked directly: a lookup by the protocol costs twice as much.
            let dict = sample.cast_exact::<PyDict>().ok();
            if dict.is_none() && !is_mapping(sample)? {
                return Err(uneven(path, index, first, sample));
            }
            if dict.map_or_else(|| sample.len(), |dict| Ok(dict.len()))? != keys.len() {
                for key in entries(sample, Ok)? {
                    if !first.contains(&key)? {
                        let what = "a key that sample 0 has not";
                        return Err(self.uneven_key(path, index, &key, what, samples)?);
                    }
                }
            }
            for (key, column) in keys.iter().zip(&mut columns) {
                let item = match dict {
                    Some(dict) => dict.get_item(key)?,
                    None => match sample.get_item(key) {
                        Err(error) if error.is_instance_of::<PyKeyError>(self.py) => None,
                        item => Some(item?),
                    },
                };
                match item {
                    Some(item) => column.push(item),
                    None => {
                        let what = "the key is missing";
                        return Err(self.uneven_key(path, index, key, what, samples)?);
                    }
                }
            }
        }
        for (key, samples) in keys.iter().zip(columns) {
            let path = self.specs.join(path, key)?;
            let out = child_of(out.as_ref(), &path, |out| out.get_item(key))?;
            open.push(Branch::child(samples, path, out, branch.depth));
        }
        self.check_keys(out.as_ref(), path, &keys, first)?;
        Ok(Container::Mapping(first.clone(), keys))
    }

    /// Refuses a key of a tree of outputs that the samples have not.
    fn check_keys(
        &self,
        out: Option<&Bound<'py, PyAny>>,
        path: &str,
        keys: &[Bound<'py, PyAny>],
        first: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let Some(out) = out else { return Ok(()) };
        if !is_mapping(out)? || out.len()? == keys.len() {
            return Ok(());
        }
        for key in entries(out, Ok)? {
            if !first.contains(&key)? {
                let path = self.specs.join(path, &key)?;
                let text = format!("out{}: the samples have no such key", at(&path));
                return Err(PyKeyError::new_err(text));
            }
        }
        Ok(())
    }

    /// A key that not every sample has.
    fn uneven_key(
        &self,
        path: &str,
        index: usize,
        key: &Bound<'py, PyAny>,
        what: &str,
        samples: &[Bound<'py, PyAny>],
    ) -> PyResult<PyErr> {
        Ok(PyKeyError::new_err(format!(
            "sample {index}{}: {what}; {} of {} samples have it",
            at(&self.specs.join(path, key)?),
            count_with(samples, key)?,
            samples.len()
        )))
    }

    fn sequence(
        &self,
        first: &Bound<'py, PyAny>,
        branch: &Branch<'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container<'py>> {
        let (class, len) = (first.get_type(), first.len()?);
        let Branch { samples, path, out, .. } = branch;
        let names = |fields: Bound<'py, PyAny>| entries(&fields, |field| field.extract());
        let names: Option<Vec<String>> = class.getattr_opt("_fields")?.map(names).transpose()?;
        for (index, sample) in samples.iter().enumerate() {
            if !is_list_or_tuple(sample) {
                return Err(uneven(path, index, first, sample));
            }
            if sample.len()? != len {
                let cure = if is_row(first)? { row_cure(path) } else { String::new() };
                return Err(PyValueError::new_err(format!(
                    "sample {index}{}: expected {len} entries, got {}{cure}",
                    at(path),
                    sample.len()?
                )));
            }
        }
        if let Some(out) = out.as_ref().filter(|out| is_list_or_tuple(out)) {
            let got = out.len()?;
            if got > len {
                let text = format!("out{}: expected {len} entries, got {got}", at(path));
                return Err(PyValueError::new_err(text));
            }
        }
        for position in 0..len {
            let name = names.as_ref().and_then(|names| names.get(position).cloned());
            let name = name.unwrap_or_else(|| position.to_string());
            let mut column = room_for(samples.len())?;
            for sample in samples {
                column.push(sample.get_item(position)?);
            }
            let path = self.specs.join_name(path, &name);
            let out = child_of(out.as_ref(), &path, |out| out.get_item(position))?;
            open.push(Branch::child(column, path, out, branch.depth));
        }
        Ok(match names {
            Some(_) => Container::Named(class, len),
            None => Container::Sequence(class, len),
        })
    }

    /// None: the class is no dataclass.
    fn dataclass(
        &self,
        first: &Bound<'py, PyAny>,
        branch: &Branch<'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Option<Container<'py>>> {
        let (class, Branch { samples, path, out, .. }) = (first.get_type(), branch);
        let Some(fields) = fields_of(&class)? else { return Ok(None) };
        check_known(&class, path, false)?;
        for field in &fields {
            let (name, path) = (field.name.as_str(), self.specs.join_name(path, &field.name));
            let mut column = room_for(samples.len())?;
            for (index, sample) in samples.iter().enumerate() {
                if !sample.get_type().is(&class) {
                    return Err(uneven(&branch.path, index, first, sample));
                }
                column.push(sample.getattr_opt(name)?.ok_or_else(|| {
                    let text = format!("sample {index}{}: the field is not set", at(&path));
                    PyAttributeError::new_err(text)
                })?);
            }
            let out = child_of(out.as_ref(), &path, |out| out.getattr(name))?;
            open.push(Branch::child(column, path, out, branch.depth));
        }
        Ok(Some(Container::Dataclass(class, fields)))
    }

    fn leaf(&mut self, branch: Branch<'py>) -> PyResult<Node<'py>> {
        let Branch { samples, path, out, within, .. } = branch;
        if let Some(index) = samples.iter().position(|sample| sample.is_none()) {
            return Err(not_array_like(Whose::Sample(index), &path, &samples[index]));
        }
        let (py, first, rows) = (self.py, samples[0].clone(), self.specs.names(&path));
        let node = self.imported(&path, out, &within, |reading| {
            let (column, ahead) = Imported::from_objects(py, samples, Reading { rows, ..reading })?;
            Ok((Arc::new(column), ahead))
        });
        node.map_err(|error| in_place_of(error, &first, &path).unwrap_or_else(|e| e))
    }

    /// A leaf whose samples `import` reads.
    fn imported(
        &mut self,
        path: &str,
        out: Option<Bound<'py, PyAny>>,
        within: &Within<'py>,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<RowsAhead>)>,
    ) -> PyResult<Node<'py>> {
        let named = self.specs.find(path, self.common)?;
        let own = within.form.as_ref();
        let form = own.map_or("stack", |(form, _)| form.as_str());
        if let (Some(class), Some((given, _))) = (&within.tensors, &named) {
            if given != form {
                return Err(PyValueError::new_err(format!(
                    "the spec{} is that of wr.{given}: leaves within {class} are torch tensors, which wr.{form} makes",
                    at(path)
                )));
            }
        }
        let mut options = match (&named, own) {
            (Some((form, kwargs)), None) => Options::parse(form, Some(kwargs))?,
            (None, None) => Options::parse("stack", self.common)?,
            (named, Some((form, own))) => {
                let given = named.as_ref().map(|(_, kwargs)| kwargs).or(self.common);
                let kwargs =
                    given.map_or_else(|| Ok(PyDict::new(self.py)), |given| given.copy())?;
                kwargs.update(own.as_mapping())?;
                Options::parse(form, Some(&kwargs))?
            }
        };
        options.out = out.or(options.out);
        options.may_start = self.may_start;
        if options.stream != self.stream {
            return Err(PyValueError::new_err("stream= is an argument of the call, not of a leaf"));
        }
        self.jobs.push(Job::new(options, path, import)?);
        Ok(Node::Leaf(self.jobs.len() - 1))
    }

    /// The nodes of a table: a dict of its columns, structs among them dicts again; of a single column the leaf.
    fn table(
        &mut self,
        columns: Vec<ArrowColumn<'py>>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Node<'py>>> {
        let mut nodes = Vec::new();
        let mut open = vec![(columns, String::new(), out, 0)];
        while let Some((mut columns, path, out, depth)) = open.pop() {
            if columns.len() == 1 && columns[0].path.len() == depth {
                nodes.push(match columns.remove(0).content {
                    Content::Texts(texts) => {
                        self.specs.pass(&path);
                        Node::Pass(texts)
                    }
                    Content::Samples(samples) => {
                        let within = Within::default();
                        self.imported(&path, out, &within, |_| Ok((Arc::from(samples), None)))?
                    }
                });
                continue;
            }
            let (first_child, mut names) = (open.len(), Vec::<Bound<'py, PyAny>>::new());
            let names_seen = PyDict::new(self.py);
            let mut columns = columns.into_iter().peekable();
            while let Some(column) = columns.next() {
                let name = column.path[depth].clone();
                let is_struct = column.path.len() > depth + 1;
                let is_next = |next: &ArrowColumn<'py>| {
                    is_struct && next.path.len() > depth + 1 && next.path[depth] == name
                };
                let mut group = vec![column];
                while let Some(column) = columns.next_if(is_next) {
                    group.push(column);
                }
                let key = PyString::new(self.py, &name).into_any();
                let path = self.specs.join_name(&path, &name);
                if names_seen.contains(&key)? {
                    let text = format!("two columns are named {path:?}; rename one of them");
                    return Err(PyValueError::new_err(text));
                }
                names_seen.set_item(&key, ())?;
                let out = child_of(out.as_ref(), &path, |out| out.get_item(&key))?;
                open.push((group, path, out, depth + 1));
                names.push(key);
            }
            let dict = PyDict::new(self.py).into_any();
            self.check_keys(out.as_ref(), &path, &names, names_seen.as_any())?;
            nodes.push(Node::Container(Container::Mapping(dict, names)));
            open[first_child..].reverse();
        }
        Ok(nodes)
    }
}

fn is_list_or_tuple(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>()
}

/// The entry of a tree of outputs for the node at `path`.
fn child_of<'py>(
    out: Option<&Bound<'py, PyAny>>,
    path: &str,
    find: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(out) = out else { return Ok(None) };
    find(out).map(Some).map_err(|error| {
        let py = out.py();
        let class = match class_name(&out.get_type()) {
            Ok(class) => class,
            Err(aborted) => return aborted,
        };
        let text = format!("out{}: there is no such entry in {class}", at(path));
        let is_key = error.is_instance_of::<PyKeyError>(py);
        in_words(py, error, || match is_key {
            true => PyKeyError::new_err(text),
            false => PyTypeError::new_err(text),
        })
    })
}

fn uneven(path: &str, index: usize, first: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> PyErr {
    match (class_name(&first.get_type()), class_name(&other.get_type())) {
        (Ok(expected), Ok(got)) => PyTypeError::new_err(format!(
            "sample {index}{}: expected {expected}, got {got}",
            at(path)
        )),
        (Err(error), _) | (_, Err(error)) => error,
    }
}

fn count_with(samples: &[Bound<'_, PyAny>], key: &Bound<'_, PyAny>) -> PyResult<usize> {
    samples.iter().try_fold(0, |count, sample| Ok(count + usize::from(sample.contains(key)?)))
}

fn build<'py>(nodes: &[Node<'py>], batches: &[Bound<'py, PyBatch>]) -> PyResult<Bound<'py, PyAny>> {
    let num_children = |node: &Node<'py>| match node {
        Node::Container(container) => container.len(),
        Node::Leaf(_) | Node::Pass(_) => 0,
    };
    fold(nodes, num_children, |node, children| match node {
        Node::Leaf(position) => Ok(batches[*position].clone().into_any()),
        Node::Pass(list) => Ok(list.clone().into_any()),
        Node::Container(container) => container.with(children),
    })
}
