//! Why the program ends without success, and with which exit status.

use std::process::ExitCode;

/// The result of every command.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Why a command ended without success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are wrong, or ask for help: clap has the text and the exit status.
    Arguments(clap::Error),
    /// Wrong use that only shows later, such as a mistake in the configuration: exit status 2.
    Use(anyhow::Error),
    /// The work failed: exit status 1.
    Work(anyhow::Error),
}

impl Failure {
    /// Wrong use, with what to do in the message.
    pub(crate) fn wrong_use(error: impl Into<anyhow::Error>) -> Self {
        Self::Use(error.into())
    }

    /// Work that failed.
    pub(crate) fn work(error: impl Into<anyhow::Error>) -> Self {
        Self::Work(error.into())
    }

    /// Says on standard error what went wrong, once, and returns the exit status.
    pub(crate) fn report(self) -> ExitCode {
        let (error, code) = match self {
            Self::Arguments(error) => {
                // Nowhere to print to: the exit status still tells.
                let _ = error.print();
                return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            }
            Self::Use(error) => (error, 2),
            Self::Work(error) => (error, 1),
        };
        eprintln!("evenkeel: {}", words(&error));
        ExitCode::from(code)
    }
}

/// Returns an error and its causes in one line, without those that it has named itself.
fn words(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no such file").context("no such file; make it");
        assert_eq!(words(&error), "no such file; make it");
        let error = anyhow::anyhow!("no such file").context("cannot read a.toml");
        assert_eq!(words(&error), "cannot read a.toml: no such file");
    }
}
