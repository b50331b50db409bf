//! The program on a pseudo terminal, as a user at a keyboard runs it.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, ExitStatus},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::{
    process::command,
    support::{BOUND, signal},
};

/// A program on a terminal, which is ended when dropped.
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    shown: Vec<u8>,
}

impl Terminal {
    pub fn start(args: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let slave = File::from(ioctl_tiocgptpeer(&master, flags).unwrap());
        let same = || slave.try_clone().unwrap();
        // The command is dropped here, and with it the terminal's handles, so that the screen ends with the program.
        let child = command(args, &[]).stdin(same()).stdout(same()).stderr(same()).spawn().expect("the program runs");
        let keyboard = File::from(master);
        let (mut read, (send, screen)) = (keyboard.try_clone().unwrap(), channel());
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Linux returns an error when the other side is closed.
            while let Ok(length @ 1..) = read.read(&mut part) {
                if send.send(part[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, screen, shown: Vec::new() }
    }

    /// Waits until this text is on the screen, and returns the whole screen.
    pub fn shows(&mut self, text: &str) -> String {
        self.shows_after("", text)
    }

    /// Waits until this text is on the screen after another, and returns the whole screen.
    pub fn shows_after(&mut self, first: &str, text: &str) -> String {
        while !self.text().split_once(first).is_some_and(|(_, rest)| rest.contains(text)) {
            let part = self.screen.recv_timeout(BOUND).unwrap_or_else(|_| panic!("no {text:?}: {}", self.text()));
            self.shown.extend(part);
        }
        self.text()
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits for the program's end. Returns the status and the whole screen.
    pub fn ended(mut self) -> (ExitStatus, String) {
        loop {
            match self.screen.recv_timeout(BOUND) {
                Ok(part) => self.shown.extend(part),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {}", self.text()),
            }
        }
        (self.child.wait().unwrap(), self.text())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).replace("\r\n", "\n")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
