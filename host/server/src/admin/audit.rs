//! The audit log: who changed what, to which code, when, and how it went. One JSON object a line, only ever appended.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::RecvTimeoutError;
use hotseam_engine::Engine;
use hotseam_slots::{SwapEvent, SwapRecord};
use serde_json::{Map, Value, json};
use warp::http::StatusCode;

use super::socket::user;
use crate::error::ApiError;
use crate::server::ServerError;

/// How often it is seen whether the engine still runs.
const PERIOD: Duration = Duration::from_millis(200);

/// An open audit log.
#[derive(Debug)]
pub struct Audit {
    file: Mutex<File>,
    path: PathBuf,
}

impl Audit {
    /// Opens the log for appending; it is made, mode 0600, if it is missing, and its directory too.
    ///
    /// # Errors
    /// [`ServerError::Audit`] naming the file: it cannot be opened, is a link, is another user's, or others can write it.
    pub fn open(path: &Path) -> Result<Self, ServerError> {
        Self::try_open(path).map_err(|message| ServerError::Audit { path: path.to_owned(), message })
    }

    fn try_open(path: &Path) -> Result<Self, String> {
        let text = |error: io::Error| match error.raw_os_error() {
            Some(libc::ELOOP) => "it is a symbolic link; name the file itself".to_owned(),
            _ => error.to_string(),
        };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(text)?;
        }
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(path).map_err(text)?;
        let metadata = file.metadata().map_err(text)?;
        let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
        if !metadata.is_file() {
            return Err("it is no regular file".to_owned());
        }
        if owner != user() || mode & 0o022 != 0 {
            return Err(format!(
                "it belongs to user {owner} with mode {mode:04o}, expected user {} and 0600: others could alter it",
                user()
            ));
        }
        Ok(Self { file: Mutex::new(file), path: path.to_owned() })
    }

    /// Path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line of `fields` after the time `at_ms`, and waits until the disk has it.
    pub(super) fn write(&self, at_ms: u64, fields: Value) -> io::Result<()> {
        let mut line = Map::new();
        line.insert("at".to_owned(), utc(at_ms).into());
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // In one call, so that lines of several servers do not mix.
        file.write_all(text.as_bytes())?;
        file.sync_data()
    }

    /// Writes what is about to be done. What cannot be written down is not done.
    pub(super) fn ask(&self, fields: Value) -> Result<(), ApiError> {
        self.write(now_ms(), fields).map_err(|error| {
            tracing::error!(%error, path = %self.path.display(), "the audit log cannot be written");
            let message = format!(
                "nothing was changed: the audit log {} cannot be written: {error}",
                self.path.display()
            );
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "audit_unavailable", message)
        })
    }

    /// Writes what has been done.
    pub(super) fn done(&self, fields: Value) {
        if let Err(error) = self.write(now_ms(), fields) {
            tracing::error!(%error, path = %self.path.display(), "the audit log cannot be written");
        }
    }

    /// Writes down the swaps that other workers of the swap group ask for, before they begin; what cannot be written down is
    /// refused.
    pub(super) fn ask_for_peers(self: &Arc<Self>, engine: &Engine) {
        let audit = Arc::clone(self);
        engine.swaps().ask_first(move |swap| {
            let line = json!({
                "who": swap.who, "action": "swap", "stage": "asked", "assignment": swap.assignment,
                "change": swap.change.to_string(), "policy": swap.policy,
            });
            audit.ask(line).map_err(|error| error.message)
        });
    }

    /// Writes down every stage of every swap of `engine`, on a thread that ends when the engine is shut down.
    pub(super) fn follow(self: &Arc<Self>, engine: &Engine) -> io::Result<()> {
        let (audit, engine, events) = (Arc::clone(self), engine.clone(), engine.swaps().subscribe());
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            loop {
                match events.recv_timeout(PERIOD) {
                    Ok(event) => {
                        let record = engine.swaps().record(event.id);
                        if let Err(error) = audit.write(event.at_ms, stage(&event, record.as_ref())) {
                            tracing::error!(%error, path = %audit.path.display(), "the audit log cannot be written");
                        }
                    }
                    Err(RecvTimeoutError::Timeout) if engine.is_running() => {}
                    Err(_) => return,
                }
            }
        })?;
        Ok(())
    }
}

/// A stage as a line: the event, and of the swap who asked for it and which code it brings in.
fn stage(event: &SwapEvent, record: Option<&SwapRecord>) -> Value {
    let mut line =
        json!({ "action": "swap", "swap": event.id, "assignment": event.assignment, "step": event.step });
    if let Some(record) = record {
        line["who"] = record.who.as_str().into();
        line["hashes"] = json!(record.hashes);
    }
    if let (Value::Object(line), Ok(Value::Object(stage))) = (&mut line, serde_json::to_value(&event.stage)) {
        line.extend(stage);
    }
    line
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A time as RFC 3339 in UTC, such as `2026-11-30T05:26:07.041Z`.
fn utc(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (hour, minute, second, milli) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60, rest % 1000);
    // Days since 0000-03-01, in eras of 400 years (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn times_are_utc() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let dir = std::env::temp_dir().join(format!("hotseam-audit-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let path = dir.join("state/audit.jsonl");
        for number in [1, 2] {
            Audit::open(&path).unwrap().ask(json!({ "number": number, "text": "a\nb" })).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line["number"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert!(lines[0]["at"].as_str().unwrap().ends_with('Z'));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));

        let link = dir.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        for (path, part) in [
            (&link, "symbolic link"),
            (&path, "mode 0666"),
            (&dir, "directory"),
            (&path.join("below"), "File exists"),
        ] {
            let error = Audit::open(path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(&path.display().to_string()), "{error}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
