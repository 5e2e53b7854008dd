//! What is started, and when it counts as ready.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::demo::launch::LIMIT;

/// An application in the guest, from the packages of Debian.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum App {
    /// The shell: ready when it carries out its first command.
    Bash,
    /// Ready when its first line runs.
    Python3,
    /// A terminal: ready when it asks the X server to show its window.
    Xterm,
    /// Any command line: ready when it has ended well.
    Command(String),
}

impl FromStr for App {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "bash" => Self::Bash,
            "python3" => Self::Python3,
            "xterm" => Self::Xterm,
            command => Self::Command(command.to_owned()),
        })
    }
}

impl fmt::Display for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bash => "bash",
            Self::Python3 => "python3",
            Self::Xterm => "xterm",
            Self::Command(command) => command,
        })
    }
}

impl App {
    /// Returns whether it needs an X server.
    pub(super) fn needs_x(&self) -> bool {
        matches!(self, Self::Xterm)
    }

    /// Returns the guest's command that starts it and prints how long that took.
    pub(super) fn launch(&self) -> String {
        let limit = LIMIT.as_secs();
        let program = match self {
            Self::Bash => "/bin/bash -c 'echo ready'".to_owned(),
            Self::Python3 => "/usr/bin/python3 -c 'print(\"ready\", flush=True)'".to_owned(),
            Self::Xterm => {
                let x = "/mnt/tmp/.X11-unix";
                return format!(
                    "guest launch-x {limit} {x}/X9 {x}/X7 \
                     chroot /mnt /usr/bin/env HOME=/tmp DISPLAY=:9 /usr/bin/xterm"
                );
            }
            Self::Command(command) => {
                let script = format!("({command}) </dev/null >/dev/null && echo ready");
                format!("/bin/sh -c '{}'", script.replace('\'', "'\\''"))
            }
        };
        format!("guest launch {limit} chroot /mnt {program}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_reaches_the_shell_as_it_was_written() {
        let Ok(app) = "sort -n '/etc/a b'".parse::<App>();
        assert_eq!(app.to_string(), "sort -n '/etc/a b'");
        let launch = app.launch();
        assert!(launch.contains(r"'(sort -n '\''/etc/a b'\'') </dev/null"), "{launch}");
        assert_eq!("xterm".parse(), Ok(App::Xterm));
    }
}
