//! Names, parameters and their documentation: from `hdd:rpm=5400,ncq=32` to a device.

use core::fmt;
use core::str::FromStr;

use crate::blocks;
use crate::disk::{self, DiskModel};
use crate::flash::{self, FlashModel};
use crate::{DeviceModel, Io};
use evenkeel_sched::{Nanos, Tag};

/// One parameter of a family of models.
#[derive(Debug)]
pub(crate) struct Parameter<P: 'static> {
    /// The key; the unit comes last in it.
    pub name: &'static str,
    /// What it means, for the documentation.
    pub meaning: &'static str,
    pub min: u64,
    pub max: u64,
    /// Where it lives.
    pub field: fn(&mut P) -> &mut u64,
}

/// A named device: the values of all parameters, and where each of them comes from.
#[derive(Debug)]
pub(crate) struct Preset<P: 'static> {
    pub name: &'static str,
    pub title: &'static str,
    pub params: P,
    /// One per parameter, in the order of the family's parameters.
    pub sources: &'static [&'static str],
}

/// The names of all models.
pub const MODELS: [&str; 5] = ["hdd", "sdhc", "emmc", "ssd", "nvme"];

/// A modelled device.
#[derive(Debug)]
pub enum Model {
    /// A disk with heads and platters.
    Disk(DiskModel),
    /// A card, chip or drive of flash memory.
    Flash(FlashModel),
}

/// A model was asked for that does not exist.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ModelError {
    /// There is no model of this name. Choose one of [`MODELS`].
    UnknownModel {
        /// What was asked for.
        name: String,
    },
    /// The text is not of the form `name:key=value,key=value`.
    Syntax {
        /// The part that is not `key=value`.
        part: String,
    },
    /// The model has no parameter of this name.
    UnknownKey {
        /// The model.
        model: &'static str,
        /// What was asked for.
        key: String,
        /// The keys that it has, in the order of the documentation.
        allowed: Vec<&'static str>,
    },
    /// The value is not a whole number in the allowed range.
    BadValue {
        /// The model.
        model: &'static str,
        /// The parameter.
        key: &'static str,
        /// What was asked for.
        value: String,
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// Each value is allowed, but not all of them together.
    Contradiction {
        /// The model.
        model: &'static str,
        /// The parameters that contradict each other.
        keys: &'static [&'static str],
        /// What would have to hold.
        rule: &'static str,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel { name } => {
                write!(f, "model `{name}` does not exist; choose one of {}", MODELS.join(", "))
            }
            Self::Syntax { part } => {
                write!(f, "`{part}` is not key=value; write a model like hdd:rpm=5400,ncq=32")
            }
            Self::UnknownKey { model, key, allowed } => write!(
                f,
                "model `{model}` has no parameter `{key}`; choose among {}",
                allowed.join(", ")
            ),
            Self::BadValue { model, key, value, min, max } => {
                write!(f, "{model}:{key}={value}: allowed are whole numbers from {min} to {max}")
            }
            Self::Contradiction { model, keys, rule } => {
                write!(f, "{model}: {} contradict each other: {rule}", keys.join(", "))
            }
        }
    }
}

impl core::error::Error for ModelError {}

/// A model by name with some of its parameters changed, as written `hdd:rpm=5400,ncq=32`.
///
/// # Examples
///
/// ```
/// use evenkeel_sim::{DeviceModel, ModelSpec};
///
/// let disk = "hdd:ncq=32".parse::<ModelSpec>()?.build()?;
/// assert_eq!((disk.name(), disk.depth(), disk.rotational()), ("hdd", 32, true));
/// # Ok::<(), evenkeel_sim::ModelError>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelSpec {
    /// One of [`MODELS`].
    pub name: String,
    /// Keys and values, later ones win.
    pub overrides: Vec<(String, String)>,
}

impl ModelSpec {
    /// Builds the device.
    ///
    /// # Errors
    ///
    /// * [`ModelError`], as [`model`].
    pub fn build(&self) -> Result<Model, ModelError> {
        model(&self.name, &self.overrides)
    }
}

impl FromStr for ModelSpec {
    type Err = ModelError;

    /// Parses and checks everything, values included, so that what parses can be built.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut overrides = Vec::new();
        for part in rest.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(ModelError::Syntax { part: part.to_owned() });
            };
            overrides.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        let spec = Self { name: name.trim().to_owned(), overrides };
        spec.build()?;
        Ok(spec)
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (key, value)) in self.overrides.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

/// Builds the device `name` with some parameters changed; `docs/devices.md` lists them all.
///
/// # Errors
///
/// * [`ModelError`]: names the field, the value, and what is allowed. Show it to the operator.
pub fn model(name: &str, overrides: &[(String, String)]) -> Result<Model, ModelError> {
    if let Some(preset) = disk::PRESETS.iter().find(|preset| preset.name == name) {
        let params = apply(preset, disk::PARAMETERS, overrides)?;
        return DiskModel::new(preset.name, &params).map(Model::Disk);
    }
    if let Some(preset) = flash::PRESETS.iter().find(|preset| preset.name == name) {
        let params = apply(preset, flash::PARAMETERS, overrides)?;
        return FlashModel::new(preset.name, &params).map(Model::Flash);
    }
    Err(ModelError::UnknownModel { name: name.to_owned() })
}

fn apply<P: Copy>(
    preset: &Preset<P>,
    parameters: &'static [Parameter<P>],
    overrides: &[(String, String)],
) -> Result<P, ModelError> {
    let mut params = preset.params;
    for (key, value) in overrides {
        let Some(parameter) = parameters.iter().find(|parameter| parameter.name == key) else {
            return Err(ModelError::UnknownKey {
                model: preset.name,
                key: key.clone(),
                allowed: parameters.iter().map(|parameter| parameter.name).collect(),
            });
        };
        let range = parameter.min..=parameter.max;
        let Some(number) = value.parse().ok().filter(|number| range.contains(number)) else {
            return Err(ModelError::BadValue {
                model: preset.name,
                key: parameter.name,
                value: value.clone(),
                min: parameter.min,
                max: parameter.max,
            });
        };
        *(parameter.field)(&mut params) = number;
    }
    Ok(params)
}

/// Returns the tables of `docs/devices.md`: every parameter of every model with its source.
#[must_use]
pub fn describe() -> String {
    let mut text = String::new();
    for preset in disk::PRESETS {
        describe_preset(&mut text, preset, disk::PARAMETERS);
    }
    for preset in flash::PRESETS {
        describe_preset(&mut text, preset, flash::PARAMETERS);
    }
    describe_preset(&mut text, &blocks::PRESET, blocks::PARAMETERS);
    text
}

fn describe_preset<P: Copy>(text: &mut String, preset: &Preset<P>, parameters: &[Parameter<P>]) {
    use fmt::Write;
    const SINK: &str = "writing to a string cannot fail";
    writeln!(text, "## `{}`: {}\n", preset.name, preset.title).expect(SINK);
    writeln!(text, "| parameter | default | allowed | meaning | source |").expect(SINK);
    writeln!(text, "|---|---|---|---|---|").expect(SINK);
    let mut params = preset.params;
    for (parameter, source) in parameters.iter().zip(preset.sources) {
        let Parameter { name, meaning, min, max, field } = parameter;
        let value = *field(&mut params);
        writeln!(text, "| `{name}` | {value} | {min} to {max} | {meaning} | {source} |")
            .expect(SINK);
    }
    writeln!(text).expect(SINK);
}

macro_rules! each {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Self::Disk($device) => $call,
            Self::Flash($device) => $call,
        }
    };
}

impl DeviceModel for Model {
    fn depth(&self) -> u32 {
        each!(self, device => device.depth())
    }

    fn rotational(&self) -> bool {
        each!(self, device => device.rotational())
    }

    fn submit(&mut self, now: Nanos, tag: Tag, io: &Io) {
        each!(self, device => device.submit(now, tag, io));
    }

    fn next_event(&self) -> Option<Nanos> {
        each!(self, device => device.next_event())
    }

    fn complete(&mut self, now: Nanos) -> Option<Tag> {
        each!(self, device => device.complete(now))
    }

    fn name(&self) -> &str {
        each!(self, device => device.name())
    }

    fn sectors(&self) -> Option<u64> {
        each!(self, device => device.sectors())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<ModelSpec>().unwrap_err().to_string()
    }

    #[test]
    fn every_parameter_of_every_model_has_a_value_in_range_and_a_source() {
        fn check<P: Copy>(presets: &[Preset<P>], parameters: &[Parameter<P>]) {
            for preset in presets {
                assert_eq!(preset.sources.len(), parameters.len(), "{}", preset.name);
                for parameter in parameters {
                    let mut params = preset.params;
                    let value = *(parameter.field)(&mut params);
                    let range = parameter.min..=parameter.max;
                    assert!(range.contains(&value), "{}:{}", preset.name, parameter.name);
                }
            }
        }
        check(disk::PRESETS, disk::PARAMETERS);
        check(flash::PRESETS, flash::PARAMETERS);
        check(&[blocks::PRESET], blocks::PARAMETERS);
        for name in MODELS {
            assert_eq!(model(name, &[]).unwrap().name(), name);
        }
    }

    #[test]
    fn the_documentation_lists_what_the_code_does() {
        let page = include_str!("../../../docs/devices.md");
        let tables = describe();
        assert!(page.contains(tables.trim_end()), "docs/devices.md should contain:\n{tables}");
    }

    #[test]
    fn a_mistake_names_field_value_and_what_is_allowed() {
        assert_eq!(
            error("floppy"),
            "model `floppy` does not exist; choose one of hdd, sdhc, emmc, ssd, nvme"
        );
        assert_eq!(error("hdd:ncq=64"), "hdd:ncq=64: allowed are whole numbers from 1 to 32");
        assert_eq!(
            error("hdd:rpm=fast"),
            "hdd:rpm=fast: allowed are whole numbers from 1000 to 20000"
        );
        assert_eq!(
            error("hdd:rpm"),
            "`rpm` is not key=value; write a model like hdd:rpm=5400,ncq=32"
        );
        let unknown = error("nvme:rpm=5400");
        assert!(
            unknown.starts_with(
                "model `nvme` has no parameter `rpm`; choose among capacity_mb, depth"
            )
        );
        let seek = error("hdd:seek_avg_us=30000");
        assert!(
            seek.starts_with("hdd: seek_min_us, seek_avg_us, seek_max_us contradict"),
            "{seek}"
        );
    }

    #[test]
    fn a_specification_reads_back_as_it_was_written() {
        for text in ["hdd", "hdd:rpm=5400,ncq=32", "nvme:ways=8"] {
            assert_eq!(text.parse::<ModelSpec>().unwrap().to_string(), text);
        }
    }
}
