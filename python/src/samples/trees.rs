//! [`Trees`]: samples that are trees, taken apart once: their containers, and for each leaf the list of its samples.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyType};

use crate::ground::errors::{at, class_name};
use crate::ground::iterables::{is_list_or_tuple, is_mapping, is_text};
use crate::ground::reserve::room_for;
use crate::ground::tensor::PyTensor;
use crate::import::importer::{Importer, Reading};
use crate::import::routes::{has_interface, route_of, ImportRoute};
use crate::import::rows::is_of_numbers;
use crate::import::tensor::tensor_of;
use crate::samples::columns::{are_rows, import_leaf, Content, LeafColumn};
use crate::trees::container::{names_of, ColumnPlace, Container};
use crate::trees::node_types::{dataclass_fields, opener_of};
use crate::trees::rules::apart;
use crate::trees::walk::{fold, walk, Branch};

/// Joins the names of a path in errors.
const SEP: &str = ".";

/// Samples of one structure.
#[derive(Clone)]
pub(crate) struct Trees {
    shape: Arc<Shape>,
    /// Of each leaf, in the order of the structure.
    columns: Vec<LeafColumn>,
    len: usize,
}

/// The structure of all samples: its nodes, each before its children.
struct Shape(Vec<ShapeNode>);

pub(crate) struct ShapeNode {
    pub node_type: ShapeNodeType,
    pub path: String,
}

pub(crate) enum ShapeNodeType {
    Container(Arc<Container>),
    /// The position of the column of a leaf, and what is in it.
    Leaf(usize, Content),
}

/// Whether a list that begins with this sample is one of trees.
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
    if is_list_or_tuple(sample) && opener_of(sample, false)?.is_none() {
        return Ok(names_of(&class)?.is_some() || !is_of_numbers(sample, true)?);
    }
    Ok(is_mapping(sample)?
        || dataclass_fields(&class)?.is_some()
        || opener_of(sample, false)?.is_some()
        || opener_of(sample, true)?.is_some())
}

impl Shape {
    fn leaves(&self) -> impl Iterator<Item = (&ShapeNode, &Content)> {
        self.0.iter().filter_map(|node| match &node.node_type {
            ShapeNodeType::Leaf(_, content) => Some((node, content)),
            ShapeNodeType::Container(_) => None,
        })
    }

    /// For each column of a list of this structure that of another list.
    ///
    /// # Errors
    /// Another structure, with the path.
    fn columns_in(&self, py: Python<'_>, other: &Shape) -> PyResult<Vec<usize>> {
        let mut columns = room_for(self.leaves().count())?;
        let (own_ends, other_ends) = (self.ends(), other.ends());
        let children = |ends: &[usize], node: usize, count: usize| {
            let next = |&child: &usize| Some(ends[child]);
            std::iter::successors(Some(node + 1), next).take(count).collect::<Vec<usize>>()
        };
        let mut open = vec![(0, 0)];
        while let Some((own, its)) = open.pop() {
            let (node, other) = (&self.0[own], &other.0[its]);
            match (&node.node_type, &other.node_type) {
                (ShapeNodeType::Container(container), ShapeNodeType::Container(like)) => {
                    let Some(order) = container.order_in(py, like)? else {
                        return Err(node.unlike());
                    };
                    let own = children(&own_ends, own, order.len());
                    let its = children(&other_ends, its, order.len());
                    open.extend(own.into_iter().zip(order.iter().map(|&child| its[child])).rev());
                }
                (ShapeNodeType::Leaf(_, content), ShapeNodeType::Leaf(position, its))
                    if content.is_like(py, its) =>
                {
                    columns.push(*position);
                }
                _ => return Err(node.unlike()),
            }
        }
        Ok(columns)
    }

    /// Where the subtree of each node ends.
    fn ends(&self) -> Vec<usize> {
        let (mut ends, mut open) = (vec![0; self.0.len()], Vec::new());
        for (position, node) in self.0.iter().enumerate().rev() {
            let mut end = position + 1;
            for _ in 0..node.num_children() {
                end = open.pop().unwrap_or(end);
            }
            ends[position] = end;
            open.push(end);
        }
        ends
    }
}

impl ShapeNode {
    fn place(&self, start: usize) -> ColumnPlace<'_> {
        ColumnPlace { path: &self.path, sep: SEP, added_to: Some(start) }
    }

    fn unlike(&self) -> PyErr {
        let at = at(&self.path);
        PyTypeError::new_err(format!("the samples of the two lists differ in structure{at}"))
    }

    fn num_children(&self) -> usize {
        match &self.node_type {
            ShapeNodeType::Container(container) => container.len(),
            ShapeNodeType::Leaf(..) => 0,
        }
    }
}

impl Trees {
    pub fn new(nodes: Vec<ShapeNode>, columns: Vec<LeafColumn>, len: usize) -> Trees {
        Trees { shape: Arc::new(Shape(nodes)), columns, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The nodes, each before its children, and the columns of leaves.
    pub fn nodes(&self) -> impl Iterator<Item = (&ShapeNodeType, Option<&LeafColumn>)> {
        self.shape.0.iter().map(|node| match &node.node_type {
            ShapeNodeType::Leaf(position, _) => (&node.node_type, self.columns.get(*position)),
            ShapeNodeType::Container(_) => (&node.node_type, None),
        })
    }

    /// The path of each leaf and its column, in the order of the structure.
    pub fn leaves(&self) -> impl Iterator<Item = (&str, &LeafColumn)> {
        let paths = self.shape.leaves().map(|(node, _)| node.path.as_str());
        paths.zip(&self.columns)
    }

    /// So many samples of this structure with other leaves, in its order.
    ///
    /// # Errors
    /// Other kinds of leaves, or leaves of another number of samples.
    pub fn with_columns(&self, columns: Vec<LeafColumn>, len: usize) -> PyResult<Trees> {
        let is_like = |(own, other): (&LeafColumn, &LeafColumn)| {
            std::mem::discriminant(own) == std::mem::discriminant(other) && other.len() == len
        };
        match columns.len() == self.columns.len() && self.columns.iter().zip(&columns).all(is_like)
        {
            true => Ok(Trees { shape: Arc::clone(&self.shape), columns, len }),
            false => {
                Err(PyValueError::new_err("leaves that do not fit the structure of the samples"))
            }
        }
    }

    pub fn num_leaves(&self) -> usize {
        self.columns.len()
    }

    /// The class of the samples, for texts.
    pub fn class(&self, py: Python<'_>) -> PyResult<String> {
        match self.shape.0.first().map(|root| &root.node_type) {
            Some(ShapeNodeType::Container(container)) => class_name(container.class(py)),
            _ => Ok("objects".to_owned()),
        }
    }

    /// Takes the samples of a new list apart.
    pub fn read(samples: Vec<Bound<'_, PyAny>>) -> PyResult<Trees> {
        Trees::read_as(samples, false)
    }

    /// Takes a template or a sample apart.
    pub fn read_template(template: Bound<'_, PyAny>) -> PyResult<Trees> {
        Trees::read_as(vec![template], true)
    }

    fn read_as(samples: Vec<Bound<'_, PyAny>>, is_template: bool) -> PyResult<Trees> {
        let (py, len) = (samples[0].py(), samples.len());
        let mut columns = Vec::new();
        let nodes =
            walk(Branch::root(samples), |Branch { column: samples, path, .. }, children| {
                let place = ColumnPlace { path: &path, sep: SEP, added_to: None };
                let class = samples[0].cast::<PyType>().ok().filter(|_| is_template);
                let content = match class {
                    Some(class) => Content::Objects(class.clone().unbind()),
                    None => Content::of(&samples, place)?,
                };
                let (content, apart) = match content {
                    Content::Tensors => match apart(&samples, place, are_rows(&samples)?, None)? {
                        Some(apart) if !apart.container.is_open() => {
                            (Content::Objects(samples[0].get_type().unbind()), None)
                        }
                        apart => (Content::Tensors, apart),
                    },
                    content => (content, None),
                };
                let node_type = match apart {
                    Some(apart) => {
                        for (child, column) in apart.columns.into_lists()?.into_iter().enumerate() {
                            children.push(column, apart.container.path_of(py, child, place)?);
                        }
                        ShapeNodeType::Container(Arc::new(apart.container))
                    }
                    None => {
                        columns.push(LeafColumn::read(samples, place, &content)?);
                        ShapeNodeType::Leaf(columns.len() - 1, content)
                    }
                };
                Ok(ShapeNode { node_type, path })
            })?;
        Ok(Trees::new(nodes, columns, len))
    }

    /// Takes further samples apart, which are to have the structure of these. The first will be number `start`.
    ///
    /// # Errors
    /// Another structure, with sample and path.
    pub fn read_more(&self, samples: Vec<Bound<'_, PyAny>>, start: usize) -> PyResult<Trees> {
        let (py, len) = (samples[0].py(), samples.len());
        let mut columns: Vec<Vec<Bound<'_, PyAny>>> = room_for(self.columns.len())?;
        let mut open = vec![samples];
        for node in &self.shape.0 {
            let samples = open.pop().unwrap_or_default();
            let place = node.place(start);
            match &node.node_type {
                ShapeNodeType::Container(container) => {
                    let children = container.columns(py, &samples, place, None)?.into_lists()?;
                    open.extend(children.into_iter().rev());
                }
                ShapeNodeType::Leaf(_, content) => {
                    content.check(&samples, place)?;
                    columns.push(samples);
                }
            }
        }
        let columns = match len {
            1 => self.read_one(columns, start)?,
            _ => {
                let leaves = self.shape.leaves().zip(columns);
                let read = |((node, content), samples): ((&ShapeNode, &Content), Vec<_>)| {
                    LeafColumn::read(samples, node.place(start), content)
                };
                leaves.map(read).collect::<PyResult<Vec<_>>>()?
            }
        };
        Ok(Trees { shape: Arc::clone(&self.shape), columns, len })
    }

    /// Reads the leaves of one sample.
    fn read_one(
        &self,
        leaves: Vec<Vec<Bound<'_, PyAny>>>,
        start: usize,
    ) -> PyResult<Vec<LeafColumn>> {
        let mut columns = room_for(leaves.len())?;
        for (((node, _), own), leaf) in self.shape.leaves().zip(&self.columns).zip(leaves) {
            let LeafColumn::Tensors(own) = own else {
                columns.push(LeafColumn::of_objects(leaf)?);
                continue;
            };
            let py = leaf[0].py();
            let importer = Importer::new(py, Reading { path: &node.path, ..Reading::OWNED });
            let read = |leaf| own.read_more(importer, leaf, start);
            let imported = import_leaf(leaf, node.place(start), read)?;
            columns.push(LeafColumn::Tensors(Arc::new(imported)));
        }
        Ok(columns)
    }

    /// The samples at these positions, of which negative ones count from the end.
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
        Ok(Trees { shape: Arc::clone(&self.shape), columns, len: positions.len() })
    }

    /// A sample as a tree of tensors; other leaves are as they were given.
    pub fn sample<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        fold(&self.shape.0, ShapeNode::num_children, |node, children| match &node.node_type {
            ShapeNodeType::Container(container) => container.with(py, children),
            ShapeNodeType::Leaf(position, _) => match &self.columns[*position] {
                LeafColumn::Tensors(imported) => imported.object(py, index, &node.path),
                LeafColumn::Objects(objects) => {
                    let object = objects[index].bind(py);
                    match object.cast_exact::<PyList>() {
                        Ok(list) => Ok(list.as_sequence().to_list()?.into_any()),
                        Err(_) => Ok(object.clone()),
                    }
                }
            },
        })
    }

    /// A tree of this structure for [`Trees::read_template`], also of a list of no samples. Of objects it has the class.
    pub fn template<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Not a Python number: a list of these would be a leaf.
        let tensor = tensor_of(PyInt::new(py, 0).as_any(), "template", Reading::OWNED)?;
        let tensor = Bound::new(py, PyTensor::from(tensor))?.into_any();
        fold(&self.shape.0, ShapeNode::num_children, |node, children| match &node.node_type {
            ShapeNodeType::Container(container) => container.with(py, children),
            ShapeNodeType::Leaf(_, Content::Tensors) => Ok(tensor.clone()),
            ShapeNodeType::Leaf(_, Content::Texts) => Ok(PyString::new(py, "").into_any()),
            ShapeNodeType::Leaf(_, Content::Numbers) => Ok(PyList::new(py, [0])?.into_any()),
            ShapeNodeType::Leaf(_, Content::Objects(class)) => {
                Ok(class.bind(py).clone().into_any())
            }
        })
    }

    /// Whether another list has its columns in the order of this one, as those that were taken or read from it have.
    pub fn is_alike(&self, other: &Trees) -> bool {
        Arc::ptr_eq(&self.shape, &other.shape)
    }

    /// Another list with its columns in the order of this one. Compares keys, which can run any code.
    ///
    /// # Errors
    /// Another structure, with the path.
    pub fn arrange(&self, py: Python<'_>, other: &Trees) -> PyResult<Trees> {
        let from = self.shape.columns_in(py, &other.shape)?;
        let columns = from.into_iter().map(|position| other.columns[position].clone()).collect();
        Ok(Trees { shape: Arc::clone(&self.shape), columns, len: other.len })
    }

    /// Adds the samples of another list that is alike; on an error none.
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
                    // There is room for what was there.
                    column.replace(py, index, old)?;
                }
                return Err(error);
            }
        }
        Ok(old)
    }
}
