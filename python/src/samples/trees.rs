//! [`Trees`]: samples that are trees, taken apart once: their containers, and for each leaf the list of its samples.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyType};

use crate::ground::errors::{at, class_name};
use crate::ground::iterables::{is_list_or_tuple, is_mapping, is_text};
use crate::ground::reserve::{push_to, try_vec};
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::routes::{has_interface, route_of, ImportRoute};
use crate::import::rows::is_of_numbers;
use crate::import::tensor::tensor_of;
use crate::ownership::holder::Visited;
use crate::samples::leaf_columns::{are_rows, Content, LeafColumn};
use crate::trees::container::{has_names, ColumnPlace, Container};
use crate::trees::flatten::{flatten, Classified, Flat, TreeRules};
use crate::trees::node_types::{dataclass_fields, flattener_of};
use crate::trees::rules;
use crate::trees::tree_def::TreeDef;

/// Joins the names of a path in errors.
const SEP: &str = ".";

/// The place of samples that will follow `start` others in a list.
fn place_after(start: usize, path: &str) -> ColumnPlace<'_> {
    ColumnPlace { added_to: Some(start), ..ColumnPlace::new(path, SEP) }
}

/// Samples of one structure.
pub(crate) struct Trees {
    shape: Py<Shape>,
    /// The column of each leaf, in the order of the structure.
    columns: Vec<LeafColumn>,
    len: usize,
}

/// The structure of all samples: an object, to which each list has a reference of its own. It refers to what the samples do by
/// their class, their keys and the attributes of the first one.
#[pyclass(frozen, name = "_Shape", module = "windrow")]
pub(crate) struct Shape {
    tree: TreeDef,
    leaves: Vec<ShapeLeaf>,
}

#[pymethods]
impl Shape {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        let mut classes = self.leaves.iter().filter_map(|leaf| match &leaf.content {
            Content::Objects(class) => Some(class),
            _ => None,
        });
        classes.try_for_each(|class| visit.call(class))?;
        self.tree.visit(&visit)
    }
}

struct ShapeLeaf {
    path: String,
    content: Content,
}

/// Whether a list that begins with this sample is one of trees: a mapping, a dataclass, an object of a registered class, a named tuple,
/// or a list or tuple that has more than numbers and None in it. Array-likes and texts are leaves.
pub(crate) fn is_tree(sample: &Bound<'_, PyAny>) -> PyResult<bool> {
    if sample.cast_exact::<PyDict>().is_ok() {
        return Ok(true);
    }
    if !matches!(route_of(sample)?.0, ImportRoute::Protocols | ImportRoute::Row) || is_text(sample)
    {
        return Ok(false);
    }
    let class = sample.get_type();
    if has_interface(&class)? {
        return Ok(false);
    }
    if is_list_or_tuple(sample) && flattener_of(sample, false)?.is_none() {
        return Ok(has_names(&class)? || !is_of_numbers(sample, true)?);
    }
    Ok(is_mapping(sample)?
        || dataclass_fields(&class)?.is_some()
        || flattener_of(sample, false)?.is_some()
        || flattener_of(sample, true)?.is_some())
}

/// Part of a structure: the number of a leaf, or a container.
enum StructureNode<'a> {
    Leaf(usize),
    Container(&'a Container, Vec<StructureNode<'a>>),
}

impl Shape {
    /// The position of each column of this structure in another list, whose keys may be in another order.
    ///
    /// # Errors
    /// TypeError for another structure, with the path.
    fn columns_in(&self, py: Python<'_>, other: &Shape) -> PyResult<Vec<usize>> {
        let unlike = |path: &str| {
            let at = at(path);
            PyTypeError::new_err(format!("the samples of the two lists differ in structure{at}"))
        };
        let mut columns = try_vec(self.leaves.len())?;
        let parts = other.tree.fold(
            |leaf| Ok(StructureNode::Leaf(leaf)),
            |container, children| Ok(StructureNode::Container(container, children)),
        )?;
        self.tree.flatten_up_to(
            parts,
            |container, path, part| match part {
                StructureNode::Container(like, children) => {
                    let order = container.order_in(py, like)?.ok_or_else(|| unlike(path))?;
                    let mut children: Vec<_> = children.into_iter().map(Some).collect();
                    Ok(order.into_iter().filter_map(|child| children[child].take()).collect())
                }
                StructureNode::Leaf(_) => Err(unlike(path)),
            },
            |leaf, part| {
                let ShapeLeaf { path, content } = &self.leaves[leaf];
                match part {
                    StructureNode::Leaf(its) if content.is_like(py, &other.leaves[its].content) => {
                        push_to(&mut columns, its)
                    }
                    _ => Err(unlike(path)),
                }
            },
        )?;
        Ok(columns)
    }
}

/// Flattens the samples of a new list. Objects that can be taken apart only for a whole batch at once, by [`Container::is_open`], are a
/// leaf.
struct ListRules {
    /// Whether the one sample is a template, which has classes in place of such objects.
    is_template: bool,
}

impl<'py> TreeRules<'py> for ListRules {
    type Column = Vec<Bound<'py, PyAny>>;
    type Leaf = (Vec<Bound<'py, PyAny>>, Content);

    fn classify(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        place: ColumnPlace<'_>,
        _: bool,
    ) -> PyResult<Classified<Self::Column, Self::Leaf>> {
        let content = match samples[0].cast::<PyType>().ok().filter(|_| self.is_template) {
            Some(class) => Content::Objects(class.clone().unbind()),
            None => Content::from_samples(&samples, place)?,
        };
        if !matches!(content, Content::Tensors) {
            return Ok(Classified::Leaf((samples, content)));
        }
        match rules::flatten_container(&samples, place, are_rows(&samples)?, None)? {
            Some(flattened) if !flattened.container.is_open() => {
                let class = samples[0].get_type().unbind();
                Ok(Classified::Leaf((samples, Content::Objects(class))))
            }
            Some(flattened) => Ok(Classified::Container(
                Arc::new(flattened.container),
                flattened.columns.into_lists()?,
            )),
            None => Ok(Classified::Leaf((samples, content))),
        }
    }
}

impl Trees {
    /// Trees of leaves that `read` makes from flattened ones, each for as many samples (not checked). `len`: the number of
    /// samples; `None` takes that of the first leaf, 0 without leaves.
    pub fn new<L>(
        py: Python<'_>,
        flat: Flat<L>,
        len: Option<usize>,
        mut read: impl FnMut(&str, L) -> PyResult<(Content, LeafColumn)>,
    ) -> PyResult<Trees> {
        let (mut columns, mut leaves) = (try_vec(flat.leaves.len())?, try_vec(flat.leaves.len())?);
        for (path, leaf) in flat.leaves {
            let (content, column) = read(&path, leaf)?;
            columns.push(column);
            leaves.push(ShapeLeaf { path, content });
        }
        flat.end?;
        let len = len.unwrap_or_else(|| columns.first().map_or(0, LeafColumn::len));
        let shape = Py::new(py, Shape { tree: flat.tree, leaves })?;
        Ok(Trees { shape, columns, len })
    }

    /// The same samples for another list, with a reference of its own to the structure. Runs no Python code.
    pub fn copied(&self, py: Python<'_>) -> Trees {
        let shape = self.shape.clone_ref(py);
        Trees { shape, columns: self.columns.clone(), len: self.len }
    }

    /// Takes a copy of each leaf column with new references, if another list has it.
    pub fn unshare(&mut self, py: Python<'_>) -> PyResult<()> {
        self.columns.iter_mut().try_for_each(|column| column.unshare(py))
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The object that is the structure.
    pub fn shape(&self) -> &Py<Shape> {
        &self.shape
    }

    /// The structure, and the column of each leaf.
    pub fn parts(&self) -> (&TreeDef, &[LeafColumn]) {
        (&self.shape.get().tree, &self.columns)
    }

    /// The path of each leaf and its column, in the order of the structure.
    pub fn leaves(&self) -> impl Iterator<Item = (&str, &LeafColumn)> {
        self.shape.get().leaves.iter().map(|leaf| leaf.path.as_str()).zip(&self.columns)
    }

    /// Samples of this structure with other leaves, in its order.
    ///
    /// # Errors
    /// ValueError for other kinds of leaves, or leaves of another number of samples than `len`.
    pub fn with_columns(self, columns: Vec<LeafColumn>, len: usize) -> PyResult<Trees> {
        let is_like = |(column, other): (&LeafColumn, &LeafColumn)| {
            std::mem::discriminant(column) == std::mem::discriminant(other) && other.len() == len
        };
        match columns.len() == self.columns.len() && self.columns.iter().zip(&columns).all(is_like)
        {
            true => Ok(Trees { columns, len, ..self }),
            false => {
                Err(PyValueError::new_err("leaves that do not fit the structure of the samples"))
            }
        }
    }

    /// The number of leaves of a sample.
    pub fn num_leaves(&self) -> usize {
        self.columns.len()
    }

    /// The class of the samples, for texts; "objects" for samples that are a leaf.
    pub fn class(&self, py: Python<'_>) -> PyResult<String> {
        let root = self.shape.get().tree.root();
        root.map_or(Ok("objects".to_owned()), |root| class_name(root.class(py)))
    }

    /// Flattens the samples of a new list, at least one, and imports their leaves.
    pub fn read(samples: Vec<Bound<'_, PyAny>>) -> PyResult<Trees> {
        Trees::read_as(samples, false)
    }

    /// Flattens a template or a sample, as a list of one.
    pub fn read_template(template: Bound<'_, PyAny>) -> PyResult<Trees> {
        Trees::read_as(vec![template], true)
    }

    /// Reads trees of one structure by the rules of a list, or of a template. There is a sample.
    fn read_as(samples: Vec<Bound<'_, PyAny>>, is_template: bool) -> PyResult<Trees> {
        let (py, len) = (samples[0].py(), Some(samples.len()));
        let flat = flatten(py, &mut ListRules { is_template }, samples, String::new(), SEP);
        Trees::new(py, flat, len, |path, (samples, content)| {
            let place = ColumnPlace::new(path, SEP);
            let column = LeafColumn::read(samples, place, &content)?;
            Ok((content, column))
        })
    }

    /// Flattens further samples, at least one, which must have the structure of these, as a list that is
    /// [alike](Trees::is_alike). `start`: the number of the first.
    ///
    /// # Errors
    /// As [`Container::columns`] for another structure, TypeError for another kind of leaf, both with sample and path; those of
    /// [`LeafColumn::read`].
    pub fn read_more(&self, samples: Vec<Bound<'_, PyAny>>, start: usize) -> PyResult<Trees> {
        let (py, len) = (samples[0].py(), samples.len());
        let Shape { tree, leaves } = self.shape.get();
        let mut columns = try_vec(self.columns.len())?;
        tree.flatten_up_to(
            samples,
            |container, path, samples| {
                container.columns(py, &samples, place_after(start, path), None)?.into_lists()
            },
            |leaf, samples| {
                let ShapeLeaf { path, content } = &leaves[leaf];
                content.check(&samples, place_after(start, path))?;
                push_to(&mut columns, samples)
            },
        )?;
        let mut read = try_vec(columns.len())?;
        for ((leaf, column), samples) in leaves.iter().zip(&self.columns).zip(columns) {
            let place = place_after(start, &leaf.path);
            read.push(match len {
                1 => column.read_one(samples, place)?,
                _ => LeafColumn::read(samples, place, &leaf.content)?,
            });
        }
        Ok(Trees { shape: self.shape.clone_ref(py), columns: read, len })
    }

    /// The samples at these positions, of which negative ones count from the end; IndexError for one that is not in the list.
    pub fn taken(&self, py: Python<'_>, mut positions: Vec<i64>) -> PyResult<Trees> {
        let len = self.len as i64;
        for position in &mut positions {
            if !(-len..len).contains(position) {
                let text = format!("index {position} in a list of {len} samples");
                return Err(PyIndexError::new_err(text));
            }
            *position += if *position < 0 { len } else { 0 };
        }
        let columns = self.columns.iter().map(|column| column.taken(py, &positions));
        let columns = columns.collect::<PyResult<_>>()?;
        Ok(Trees { shape: self.shape.clone_ref(py), columns, len: positions.len() })
    }

    /// A sample as a tree of tensors; other leaves are as they were given, lists in a copy. LayoutError if the memory of a leaf
    /// was moved. Panics for an index that is not in the list.
    pub fn sample<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let Shape { tree, leaves } = self.shape.get();
        tree.unflatten(py, |leaf| match &self.columns[leaf] {
            LeafColumn::Tensors(imported) => imported.object(py, index, &leaves[leaf].path),
            LeafColumn::Objects(objects) => {
                let object = objects[index].bind(py);
                match object.cast_exact::<PyList>() {
                    Ok(list) => Ok(list.as_sequence().to_list()?.into_any()),
                    Err(_) => Ok(object.clone()),
                }
            }
        })
    }

    /// A tree of this structure for [`Trees::read_template`], also of a list of no samples. A leaf keeps its kind alone: an
    /// integer tensor without dims for tensors of any dtype and shape, an empty text, a list of a number, the class of objects.
    pub fn template<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // The leaf is a tensor, because a list of Python numbers would be a leaf.
        let tensor = tensor_of(PyInt::new(py, 0).as_any(), "template", Reading::OWNED)?;
        let tensor = Bound::new(py, PyTensor::from(tensor))?.into_any();
        let Shape { tree, leaves } = self.shape.get();
        tree.unflatten(py, |leaf| {
            Ok(match &leaves[leaf].content {
                Content::Tensors => tensor.clone(),
                Content::Texts => PyString::new(py, "").into_any(),
                Content::Numbers => PyList::new(py, [0])?.into_any(),
                Content::Objects(class) => class.bind(py).clone().into_any(),
            })
        })
    }

    /// Whether another list has its columns in the order of this one, as those that were taken or read from it have.
    pub fn is_alike(&self, other: &Trees) -> bool {
        self.shape.is(&other.shape)
    }

    /// Another list with its columns in the order of this one. Compares keys, which can run any code.
    ///
    /// # Errors
    /// TypeError for another structure, with the path.
    pub fn arrange(&self, py: Python<'_>, other: &Trees) -> PyResult<Trees> {
        let from = self.shape.get().columns_in(py, other.shape.get())?;
        let columns = from.into_iter().map(|position| other.columns[position].clone()).collect();
        Ok(Trees { shape: self.shape.clone_ref(py), columns, len: other.len })
    }

    /// Adds the samples of another list that is alike (not checked); on an error none.
    pub fn join(&mut self, py: Python<'_>, other: &Trees) -> PyResult<()> {
        for position in 0..self.columns.len() {
            if let Err(error) = self.columns[position].join(py, &other.columns[position]) {
                self.columns[..position].iter_mut().for_each(|column| column.truncate(self.len));
                return Err(error);
            }
        }
        self.len += other.len;
        Ok(())
    }

    /// The one sample of another list that is alike in place of a sample; on an error nothing is changed. Gives what may be
    /// released now, which can run any code.
    pub fn replace(&mut self, py: Python<'_>, index: usize, other: &Trees) -> PyResult<Trees> {
        let old = self.taken(py, vec![index as i64])?;
        for position in 0..self.columns.len() {
            let column = &mut self.columns[position];
            if let Err(error) = column.replace(py, index, &other.columns[position]) {
                for (column, old) in self.columns[..position].iter_mut().zip(&old.columns) {
                    // The column has room for the entry that it had before.
                    column.replace(py, index, old)?;
                }
                return Err(error);
            }
        }
        Ok(old)
    }
}
