//! Runs the command of an oracle.
//!
//! | end | answer |
//! | --- | --- |
//! | exit 0 | good |
//! | exit 1 to 124 | bad |
//! | exit 125 | skip |
//! | exit 126, 127, 128 and more, a signal | the oracle is broken: it must never convict a patch |
//! | no end in time | hang; the process group is killed |
//!
//! The command may write one JSON object to file descriptor 3: [`Said`].

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::{Counts, Verdict};

/// Descriptor on which a command may say more than its exit code.
const SAID: i32 = 3;
/// Bytes kept of each output of a command, from its end.
const KEPT: usize = 4096;
/// Bytes of JSON, at most.
const MOST_SAID: usize = 1 << 16;
/// Time for the rest of the outputs once a command has ended. A process that left the group may hold them open for ever.
const DRAIN: Duration = Duration::from_secs(1);
/// Time between two looks at a running command.
const LOOK: Duration = Duration::from_millis(5);

/// Where a command reaches what it judges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// Admin endpoints: `unix:/path.sock` or `http://host:port`.
    pub admin: Vec<String>,
    /// The OpenAI endpoint.
    pub api: Option<String>,
    /// The configuration file.
    pub config: Option<PathBuf>,
}

/// One run of a command.
pub(crate) struct Run<'a> {
    pub(crate) command: &'a [String],
    pub(crate) env: &'a BTreeMap<String, String>,
    pub(crate) limit: Duration,
    pub(crate) assignment: &'a str,
    pub(crate) places: &'a Places,
}

/// What a command said on descriptor 3.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Said {
    /// Draws that failed.
    pub(crate) fail: Option<u32>,
    /// Draws made.
    pub(crate) total: Option<u32>,
    /// A number to show.
    pub(crate) metric: Option<f64>,
    /// Kind of the failure.
    pub(crate) signature: Option<String>,
    /// Launch of the server that answered.
    pub(crate) launch: Option<u64>,
}

impl Said {
    pub(crate) fn counts(&self) -> Option<Counts> {
        Some(Counts { fail: self.fail?, total: self.total? })
    }
}

/// How a command ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// It did not end in time.
    Hang,
    /// It gave a verdict.
    Exit {
        verdict: Verdict,
        report: Said,
        /// The end of what it printed.
        output: String,
    },
}

/// A command that gave no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(
        "cannot run `{program}`: {source}; check the path, which is looked up from the current directory"
    )]
    Start { program: String, source: io::Error },
    #[error("`{program}` {how}, which is no verdict: 0 is good, 1 to 124 bad, 125 skips{output}")]
    End { program: String, how: String, output: String },
    #[error(
        "`{program}` wrote to descriptor 3 what is not an object of fail, total, metric, signature, launch: {what}"
    )]
    Said { program: String, what: String },
}

/// Runs a command to its end, or to its limit of time.
pub(crate) fn run(run: &Run<'_>) -> Result<Answer, Broken> {
    let words: Vec<String> = run.command.iter().map(|word| filled(word, run)).collect();
    let program = words.first().cloned().unwrap_or_default();
    let start = |source| Broken::Start { program: program.clone(), source };
    let mut command = Command::new(&program);
    command.args(words.iter().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(run.env).env("HOTSEAM_ASSIGNMENT", run.assignment);
    if !run.places.admin.is_empty() {
        command.env("HOTSEAM_ADMIN", run.places.admin.join(","));
    }
    if let Some(api) = &run.places.api {
        command.env("HOTSEAM_API", api);
    }
    if let Some(config) = &run.places.config {
        command.env("HOTSEAM_CONFIG", config);
    }
    let (said, writer) = io::pipe().map_err(start)?;
    in_a_group(&mut command, writer.as_raw_fd());
    let mut child = command.spawn().map_err(start)?;
    // The child has its own; with this one open the reader would never see the end.
    drop(writer);
    let outputs = [
        child.stdout.take().map(|out| tail(out, KEPT)),
        child.stderr.take().map(|out| tail(out, KEPT)),
        Some(tail(said, MOST_SAID)),
    ];
    let ended = wait(&mut child, run.limit).map_err(start)?;
    let until = Instant::now() + DRAIN;
    let [out, err, said] = outputs.map(|reader| reader.map_or_else(Vec::new, |reader| reader.finish(until)));
    let Some(status) = ended else { return Ok(Answer::Hang) };
    let output = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let output = output.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join("\n");
    let verdict = verdict(status).map_err(|how| {
        let output = if output.is_empty() { String::new() } else { format!(":\n{output}") };
        Broken::End { program: program.clone(), how, output }
    })?;
    let report = parse(&said).map_err(|what| Broken::Said { program, what })?;
    Ok(Answer::Exit { verdict, report, output })
}

/// A word of the command with its places filled in.
fn filled(word: &str, run: &Run<'_>) -> String {
    let config = run.places.config.as_ref().map(|path| path.display().to_string());
    word.replace("{admin}", &run.places.admin.join(","))
        .replace("{api}", run.places.api.as_deref().unwrap_or_default())
        .replace("{assignment}", run.assignment)
        .replace("{config}", &config.unwrap_or_default())
}

/// Puts the command in a process group of its own, which dies with this process, and gives it `writer` as descriptor 3.
fn in_a_group(command: &mut Command, writer: i32) {
    command.process_group(0);
    let prepare = move || {
        // SAFETY: these calls are async-signal-safe and touch only descriptors and attributes of the new process.
        unsafe {
            let given = if writer == SAID {
                // It is in place already, but would be closed by exec.
                libc::fcntl(SAID, libc::F_SETFD, 0)
            } else {
                libc::dup2(writer, SAID)
            };
            if given < 0 {
                return Err(io::Error::last_os_error());
            }
            #[cfg(target_os = "linux")]
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        Ok(())
    };
    // SAFETY: `prepare` allocates nothing and takes no lock, as is asked of code between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

/// Waits for the end; `None` if the limit passed first. What is left of the process group is killed in both cases: it
/// would disturb the next run, and hold the outputs open.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    let ended = loop {
        if has_ended(child)? {
            break true;
        }
        if begin.elapsed() >= limit {
            break false;
        }
        std::thread::sleep(LOOK);
    };
    // SAFETY: the child is not reaped yet, so the id is its own, and that of its group; a group that is gone is an error
    // that does not matter.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
    let status = child.wait()?;
    Ok(ended.then_some(status))
}

/// Whether the child has ended; it stays to be reaped, so that its id is not given to another process.
fn has_ended(child: &Child) -> io::Result<bool> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is writable and of the right type; the child is not reaped yet.
    let code = unsafe { libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), flags) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed above and filled by the call; with nothing to report the id stays zero.
    Ok(unsafe { info.assume_init().si_pid() } != 0)
}

fn verdict(status: ExitStatus) -> Result<Verdict, String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(Verdict::Good),
        (Some(125), _) => Ok(Verdict::Skip),
        (Some(1..=124), _) => Ok(Verdict::Bad),
        (Some(code @ (126 | 127)), _) => Err(format!("exited with {code}: the command did not run")),
        (Some(code), _) => Err(format!("exited with {code}")),
        (None, Some(signal)) => Err(format!("was ended by signal {signal}")),
        (None, None) => Err("ended in an unknown way".to_owned()),
    }
}

fn parse(bytes: &[u8]) -> Result<Said, String> {
    if bytes.trim_ascii().is_empty() {
        return Ok(Said::default());
    }
    let said: Said = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match (said.fail, said.total) {
        (Some(fail), Some(total)) if fail > total => Err(format!("fail is {fail} of a total of {total}")),
        (Some(_), None) | (None, Some(_)) => Err("fail and total come together".to_owned()),
        _ => Ok(said),
    }
}

/// The last bytes of an output, as a thread reads it.
struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Tail {
    /// What there is at the end of the output, or at `until`.
    fn finish(self, until: Instant) -> Vec<u8> {
        // A reader that is gone, or late, has kept what it read.
        let _ = self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads to the end and keeps the last `most` bytes.
fn tail(mut from: impl Read + Send + 'static, most: usize) -> Tail {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (end, ended) = std::sync::mpsc::channel();
    let mine = Arc::clone(&kept);
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        loop {
            match from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(read) => {
                    let mut kept = mine.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend_from_slice(&piece[..read]);
                    let over = kept.len().saturating_sub(most);
                    kept.drain(..over);
                }
            }
        }
        // Nobody may be waiting any more.
        let _ = end.send(());
    });
    Tail { kept, ended }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: f64) -> Result<Answer, Broken> {
        let places = Places {
            admin: vec!["unix:/a".into(), "unix:/b".into()],
            api: Some("http://h:1".into()),
            config: Some("/c.yaml".into()),
        };
        let command = ["sh", "-c", script, "{assignment}", "{api}"].map(str::to_owned);
        let env = BTreeMap::from([("MINE".to_owned(), "yes".to_owned())]);
        run(&Run {
            command: &command,
            env: &env,
            limit: Duration::from_secs_f64(limit),
            assignment: "arm",
            places: &places,
        })
    }

    fn said(script: &str) -> (Verdict, Said, String) {
        match sh(script, 20.0) {
            Ok(Answer::Exit { verdict, report, output }) => (verdict, report, output),
            other => panic!("{script}: {other:?}"),
        }
    }

    #[test]
    fn exits_are_verdicts_and_the_rest_breaks_the_oracle() {
        for (code, verdict) in [
            (0, Verdict::Good),
            (1, Verdict::Bad),
            (2, Verdict::Bad),
            (124, Verdict::Bad),
            (125, Verdict::Skip),
        ] {
            assert_eq!(said(&format!("exit {code}")).0, verdict, "{code}");
        }
        for (script, part) in [
            ("echo why >&2; exit 126", "exited with 126: the command did not run"),
            ("/nonexistent/oracle", "exited with 127"),
            ("exit 128", "exited with 128"),
            ("kill -SEGV $$", "was ended by signal 11"),
            ("echo why >&2; exit 255", "125 skips:\nwhy"),
        ] {
            let error = sh(script, 20.0).unwrap_err().to_string();
            assert!(error.contains(part), "{script}: {error}");
        }
        let command = ["/nonexistent/oracle".to_owned()];
        let (env, places) = (BTreeMap::new(), Places::default());
        let limit = Duration::from_secs(1);
        let missing = run(&Run { command: &command, env: &env, limit, assignment: "a", places: &places });
        assert!(missing.unwrap_err().to_string().contains("cannot run `/nonexistent/oracle`"));
    }

    #[test]
    fn a_process_that_leaves_the_group_does_not_hold_the_verdict() {
        let begin = Instant::now();
        assert_eq!(said("setsid sleep 30 & echo early; exit 1").0, Verdict::Bad);
        assert_eq!(sh("setsid sleep 30 & sleep 30", 0.2).unwrap(), Answer::Hang);
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    #[test]
    fn the_command_knows_what_it_judges() {
        let (_, _, output) = said(
            "echo $0 $1 $HOTSEAM_ADMIN $HOTSEAM_API $HOTSEAM_ASSIGNMENT $HOTSEAM_CONFIG $MINE; echo more >&2",
        );
        assert_eq!(output, "arm http://h:1 unix:/a,unix:/b http://h:1 arm /c.yaml yes\nmore");
    }

    #[test]
    fn descriptor_3_says_more() {
        let (verdict, report, _) = said(
            "echo '{\"fail\": 3, \"total\": 9, \"metric\": 0.5, \"signature\": \"s\", \"launch\": 7}' >&3; exit 1",
        );
        assert_eq!((verdict, report.counts()), (Verdict::Bad, Some(Counts { fail: 3, total: 9 })));
        assert_eq!(
            (report.metric, report.signature.as_deref(), report.launch),
            (Some(0.5), Some("s"), Some(7))
        );
        assert_eq!(said("exit 0").1, Said::default());
        for (json, part) in [
            ("{\\\"fail\\\": 3, \\\"total\\\": 2}", "fail is 3 of a total of 2"),
            ("{\\\"fail\\\": 3}", "fail and total come together"),
            ("{\\\"fial\\\": 3}", "unknown field `fial`"),
            ("not json", "descriptor 3"),
        ] {
            let error = sh(&format!("echo \"{json}\" >&3"), 20.0).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn at_the_limit_the_whole_group_is_killed() {
        let file = std::env::temp_dir().join(format!("hotseam-command-{}", std::process::id()));
        // The grandchild holds the outputs open and would write the file.
        let script = format!("(sleep 1; echo late > {0}) & sleep 30", file.display());
        let begin = Instant::now();
        assert_eq!(sh(&script, 0.2).unwrap(), Answer::Hang);
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(1200));
        assert!(!file.exists(), "a process of the group was left running");
        // So is what a command that has ended leaves behind.
        let begin = Instant::now();
        assert_eq!(said("sleep 30 & exit 0").0, Verdict::Good);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }

    #[test]
    fn only_the_end_of_a_long_output_is_kept() {
        let (_, _, output) = said("i=0; while [ $i -lt 3000 ]; do echo line$i; i=$((i+1)); done");
        assert!(output.len() <= KEPT && output.ends_with("line2999"), "{} bytes", output.len());
    }
}
