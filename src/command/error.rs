//! Failures of the commands that ask a node, and the exit codes that scripts see.

use std::process::ExitCode;

/// The reason why a command that asks a node gives no result, or not the required one.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A required call failed, which the output names, or a command of the wallet failed.
    #[error("{0}")]
    Failed(String),
    /// The input cannot be used: a flag, a file, or a value in it.
    #[error("{0}")]
    Input(String),
    /// No node answers, or the node refuses.
    #[error("{0}")]
    NoNode(String),
    /// The output cannot be written.
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

impl CommandError {
    /// Returns the error, unless it is that the reader of a pipe has closed it early.
    ///
    /// # Errors
    ///
    /// Returns the error itself if it is another.
    pub fn unless_unread(self) -> Result<(), Self> {
        match self {
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            error => Err(error),
        }
    }

    /// Returns the exit code: 1 if a required call or a command of the wallet failed, otherwise 2.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Input(_) | Self::NoNode(_) | Self::Output(_) => ExitCode::from(2),
        }
    }
}
