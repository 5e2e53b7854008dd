//! Mistakes in a configuration, in words for the person who made them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One mistake: where, what was written, what is wrong with it, and what to write instead.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Problem {
    /// The field, as in `pools.main.disks.web.weight`. Empty for the file as a whole.
    pub path: String,
    /// Its line in the file, counted from 1; none for values of the command line.
    pub line: Option<u64>,
    /// The value as written; empty if the field is missing.
    pub value: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl Problem {
    /// Returns the problem of a field, with its line not known yet.
    pub fn new(
        path: impl Into<String>,
        value: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            line: None,
            value: value.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.path)?;
        if !self.value.is_empty() {
            write!(f, " = {}", self.value)?;
        }
        if !self.path.is_empty() {
            f.write_str(": ")?;
        }
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

/// Returns the path of `key` in the table at `path`, quoted where TOML demands it.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let key =
        if !key.is_empty() && key.bytes().all(bare) { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// Every mistake of a configuration, in the order of the file. Never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Returns the problems sorted by line, or `None` if there are none.
    #[must_use]
    pub fn from_vec(mut problems: Vec<Problem>) -> Option<Self> {
        problems.sort_by(|a, b| (a.line, &a.path).cmp(&(b.line, &b.path)));
        (!problems.is_empty()).then_some(Self(problems))
    }

    /// Returns them one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("1 mistake in the configuration")?,
            n => write!(f, "{n} mistakes in the configuration")?,
        }
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
