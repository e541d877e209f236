//! The classes of rows: labels that are numbers, and the numbers of class names.

use std::collections::HashMap;

use super::column::{CellKind, Column};
use crate::import::columns::{Number, number};
use crate::import::sources::BadReason;
use dlfs_format::directory::Directory;
use dlfs_format::format::field_type::Element;
use dlfs_format::format::table::check_label;

/// Conversion of labels to numbers, and the names of the classes.
#[derive(Clone, Default)]
pub(super) struct Classes {
    /// The name of each class, by its number in the image.
    pub(super) names: Vec<Vec<u8>>,
    /// The number of each name.
    pub(super) number_of: HashMap<Vec<u8>, i64>,
    /// The type of labels that are numbers; `None`: labels are names, or there are none.
    pub(super) element: Option<Element>,
    /// For each class number of the open file, the class's number in the image. Empty: labels are stored as they are.
    of_file: Vec<i64>,
    /// Set if the options give all classes, so that another class is an error.
    pub(super) are_all: bool,
}

impl Classes {
    /// The classes of `image`, then the `given` ones. If there are given ones, no others are allowed. `column` holds
    /// the labels, if there are any.
    pub(super) fn new(
        image: Option<&Directory>,
        given: &[Vec<u8>],
        column: Option<&Column>,
    ) -> Classes {
        let element = column.and_then(|column| match &column.kind {
            CellKind::Elements(kind) => Some(kind.element()),
            _ => None,
        });
        let mut classes = Classes { element, ..Classes::default() };
        for name in image.map(Directory::classes).unwrap_or_default().iter().chain(given) {
            classes.number(name);
        }
        classes.are_all = !given.is_empty();
        let of_file = column.map(|column| &column.classes[..]).unwrap_or_default();
        classes.of_file = classes.numbers(of_file);
        classes
    }

    /// Begins a file whose labels are in `column`. Each file may number the classes differently; a file without class
    /// names uses the numbers of the previous file. Does nothing if labels are stored as they are.
    pub(super) fn begin_file(&mut self, column: &Column) {
        if !self.of_file.is_empty() && !column.classes.is_empty() {
            self.of_file = self.numbers(&column.classes);
        }
    }

    /// The numbers of classes, as [`number`](Self::number).
    pub(super) fn numbers(&mut self, names: impl IntoIterator<Item: AsRef<[u8]>>) -> Vec<i64> {
        names.into_iter().map(|name| self.number(name.as_ref())).collect()
    }

    /// The number of a class; a new class gets the next number.
    pub(super) fn number(&mut self, name: &[u8]) -> i64 {
        if let Some(number) = self.number_of.get(name) {
            return *number;
        }
        let number = self.names.len() as i64;
        self.names.push(name.to_vec());
        self.number_of.insert(name.to_vec(), number);
        number
    }

    /// Converts a number to a label. A negative class number means no label.
    pub(super) fn label(&self, element: Element, cell: &[u8]) -> Result<Option<i64>, BadReason> {
        let Number::Int(number) = number(element, cell) else {
            return Err(BadReason::Syntax("its label is no integer"));
        };
        if self.of_file.is_empty() {
            let number = i64::try_from(number);
            let number =
                number.map_err(|_| BadReason::Syntax("its label is no number of 64 bits"))?;
            check_label(Some(number))
                .map_err(|_| BadReason::Syntax("its label cannot be stored"))?;
            return Ok(Some(number));
        }
        if number < 0 {
            return Ok(None);
        }
        let class = usize::try_from(number).ok().and_then(|at| self.of_file.get(at));
        class.copied().map(Some).ok_or(BadReason::Syntax("its label is none of the classes"))
    }
}
