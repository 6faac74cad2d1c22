//! kill -9 of a server around the commit of a swap: its next start is on the variants before, says so, and has the plugin
//! file that came in in quarantine.

use hotseam_tests::http::Server;
use hotseam_tests::plugins;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CELL: &str = "attention.core@decode:layers=2";
const STOCK: &str = "attention/cpu-stock";
const PATCH: &str = "attention/cpu-sm120-mma";

/// The variant that serves a cell now.
fn serving(server: &Server) -> String {
    let slots = server.admin("GET", "/slots", "").json();
    let cells = slots["assignments"]["live"]["cells"].as_array().expect("cells");
    let cell = cells.iter().find(|cell| cell["selector"] == CELL).unwrap_or_else(|| panic!("{slots}"));
    cell["variant"].as_str().expect("a variant").to_owned()
}

fn answer(server: &Server) -> Value {
    let request = json!({"model": "nano-v4", "prompt": [0, 3, 100, 200], "max_tokens": 8, "temperature": 0});
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["text"].clone()
}

/// The files of a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

/// The marker of a swap that is tried: `part` while it is written, then `json`.
fn markers(state: &Path, ending: &str) -> Vec<PathBuf> {
    let mut paths = files(state);
    paths.retain(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("swap-in-progress-") && name.ends_with(ending)
    });
    paths
}

#[test]
fn a_kill_on_probation_leads_back_and_into_quarantine() {
    let server = Server::start(&[]);
    let want = answer(&server);
    let (status, out, err) = server.command(&["swap", CELL, PATCH, "--probation", "1000000"]);
    assert_eq!(status, 0, "{out}{err}");
    assert_eq!(serving(&server), PATCH);

    let server = server.killed_and_started_again();
    let said = server.said();
    let notice = said.lines().find(|line| line.contains("notice: the last process")).expect("a notice");
    for words in [
        "died while swap 1 of assignment `live`",
        PATCH,
        "in quarantine",
        "starts with its previous variants",
    ] {
        assert!(notice.contains(words), "`{words}` is not in: {notice}");
    }
    assert_eq!((serving(&server), answer(&server)), (STOCK.to_owned(), want));

    // It does not come back by mistake, and the message says how it does on purpose.
    let (status, out, err) = server.command(&["swap", CELL, PATCH]);
    assert!(status == 1 && err.contains("is in quarantine"), "{out}{err}");
    let held = files(&server.state().join("quarantine"));
    assert_eq!(held.len(), 1);
    assert!(err.contains(held[0].to_str().expect("UTF-8")), "{err}");
    fs::remove_file(&held[0]).expect("removed");
    let (status, out, err) = server.command(&["swap", CELL, PATCH, "--probation", "0", "--wait"]);
    assert_eq!(status, 0, "{out}{err}");

    // Kept is kept: after a crash later on nobody is blamed, and the file says what is in force.
    let server = server.killed_and_started_again();
    assert_eq!(server.said().matches("notice: the last process").count(), 1);
    assert_eq!(serving(&server), STOCK);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_kill_at_any_moment_of_a_commit_leads_back() {
    let mut server = Server::start(&[]);
    let want = answer(&server);
    let state = server.state();
    let quarantine = state.join("quarantine");
    let mut blamed = 0;
    // From the first byte of the marker through its last and the commit to a while after it.
    let moments = [
        ("part", 0),
        ("part", 500),
        ("json", 0),
        ("json", 0),
        ("json", 100),
        ("json", 1_000),
        ("json", 20_000),
    ];
    for (ending, micros) in moments {
        let mut swap = Command::new(plugins().join("hotseam"))
            .args(["swap", CELL, PATCH, "--probation", "1000000", "--admin"])
            .arg(&server.admin)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("target/release/hotseam");
        let start = Instant::now();
        // Without a pause, since the first of them exists for some milliseconds only.
        while markers(&state, ending).is_empty() && markers(&state, "json").is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "no swap began");
        }
        std::thread::sleep(Duration::from_micros(micros));
        server = server.killed_and_started_again();
        swap.wait().expect("an exit");

        let now = (serving(&server), answer(&server));
        assert_eq!(now, (STOCK.to_owned(), want.clone()), "{micros} us after `{ending}`");
        // A marker that was not complete means that nothing was committed.
        let held = files(&quarantine);
        assert!(
            held.len() <= 1 && (ending == "part" || held.len() == 1),
            "{micros} us after `{ending}`: {held:?}"
        );
        assert!(markers(&state, "json").is_empty(), "told once");
        blamed += held.len();
        held.iter().chain(&markers(&state, "part")).for_each(|path| fs::remove_file(path).expect("removed"));
    }
    assert_eq!(server.said().matches("notice: the last process").count(), blamed);
    assert_eq!(server.stop(), Some(0));
}
