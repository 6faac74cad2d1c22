//! The operator's side over the wire: who may do what, what is written down, plans, progress, saved slots, reload.

use hotseam_tests::http::{Answer, Server, answer, hotseam, run, send};
use hotseam_tests::{plugins, root};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TOKEN: &str = "6f0c1d5b8a7e43f2917d";
const CORE: &str = "attention.core@decode:layers=2-4";
const MMA: &str = "attention/cpu-sm120-mma";
/// The endpoints, with a method that each has.
const ENDPOINTS: [(&str, &str); 12] = [
    ("GET", "/slots"),
    ("GET", "/swaps"),
    ("GET", "/events"),
    ("GET", "/trace"),
    ("GET", "/stats"),
    ("GET", "/kv"),
    ("POST", "/swap"),
    ("POST", "/rollback"),
    ("POST", "/reload"),
    ("POST", "/variant"),
    ("PUT", "/assignments/x"),
    ("DELETE", "/assignments/x"),
];

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("{}", answer.body)).to_owned()
}

fn digest(server: &Server, assignment: &str) -> String {
    let slots = server.admin("GET", "/slots", "").json();
    slots["assignments"][assignment]["digest"].as_str().unwrap_or("none").to_owned()
}

fn audit(server: &Server) -> Vec<Value> {
    let text = std::fs::read_to_string(server.state().join("audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Waits until the audit log has a line that `fits`.
fn written(server: &Server, fits: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let lines = audit(server);
        if let Some(line) = lines.iter().rev().find(|line| fits(line)) {
            return line.clone();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{lines:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A file of mode 0600 with a token.
fn token_file(dir: &Path, name: &str, token: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, token).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn nobody_changes_anything_without_a_token_or_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (token, port) = (token_file(dir.path(), "ops.token", TOKEN), free_port());
    let section =
        format!("server.admin_tcp={{listen: 127.0.0.1:{port}, tokens: {{ops: {}}}}}", token.display());
    let server = Server::start(&[&section]);
    let before = digest(&server, "live");
    let tcp = |method: &str, path: &str, headers: &str, body: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        send(&mut stream, method, path, headers, body);
        answer(stream)
    };
    let swap = json!({ "select": CORE, "use": MMA }).to_string();
    let wrong = format!("authorization: Bearer {}\r\n", TOKEN.replace('6', "7"));
    for (method, path) in ENDPOINTS {
        // The public listener does not know them.
        let public = server.ask(method, path, Some(&swap));
        assert_eq!((public.status, code(&public).as_str()), (404, "unknown_url"), "{path}");
        for headers in ["", "authorization: Basic b3BzOm9wcw==\r\n", "authorization: Bearer \r\n", &wrong] {
            let refused = tcp(method, path, headers, &swap);
            assert_eq!((refused.status, code(&refused).as_str()), (401, "unauthorized"), "{path} {headers}");
            assert!(!refused.body.contains(TOKEN));
        }
    }
    assert_eq!(digest(&server, "live"), before);
    assert_eq!(audit(&server), [Value::Null; 0]);

    // The holder of the token may, and the log says who it was.
    let right = format!("authorization: Bearer {TOKEN}\r\n");
    assert_eq!(tcp("GET", "/slots", &right, "").json()["assignments"]["live"]["digest"], before.as_str());
    let url = format!("http://127.0.0.1:{port}");
    let cli = |args: &[&str]| run(hotseam().args(args).args(["--admin", &url]));
    let (status, _, err) = cli(&["slots"]);
    assert!(status == 2 && err.contains("--token-file"), "{err}");
    let token = token.to_str().unwrap();
    let (status, out, err) = cli(&["swap", CORE, MMA, "--token-file", token]);
    assert_eq!(status, 0, "{out}{err}");
    assert_ne!(digest(&server, "live"), before);
    let line = written(&server, |line| line["stage"] == "committed");
    assert_eq!(line["who"], "token ops");

    // A body is bounded, and not even read without a token.
    let large = json!({ "rules": [], "assignment": "a".repeat(2 << 20) }).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!(
        "POST /swap HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        large.len()
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    assert_eq!(answer(stream).status, 401);
    let mut stream = UnixStream::connect(&server.admin).unwrap();
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    let refused = answer(stream);
    assert_eq!((refused.status, code(&refused).as_str()), (413, "request_too_large"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&server.admin), mode(&server.state().join("audit.jsonl"))), (0o600, 0o600));
}

#[test]
fn a_server_that_could_be_reached_by_others_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let (open, good) = (token_file(dir.path(), "open", TOKEN), token_file(dir.path(), "good", TOKEN));
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let link = dir.path().join("link");
    symlink(&good, &link).unwrap();
    let config = root().join("configs/quickstart.yaml");
    for (listen, token, part) in [
        ("0.0.0.0:0", &good, "expected an address on the loopback"),
        ("127.0.0.1:0", &open, "mode 0644, expected 0600"),
        ("127.0.0.1:0", &link, "symbolic link"),
        ("127.0.0.1:0", &dir.path().join("none"), "No such file"),
    ] {
        let section =
            format!("server.admin_tcp={{listen: '{listen}', tokens: {{ops: {}}}}}", token.display());
        let mut command = hotseam();
        command.args(["serve", "-c"]).arg(&config).args([
            "--set",
            "server.listen=127.0.0.1:0",
            "--set",
            &section,
        ]);
        command.args(["--set", &format!("server.admin={}/s/a.sock", dir.path().display())]);
        let (status, _, err) = run(&mut command);
        assert!(status == 2 && err.contains(part) && err.contains("admin_tcp"), "{status} {err}");
        assert!(!err.contains(TOKEN), "{err}");
    }
}

#[test]
fn names_and_paths_stay_inside_their_directories() {
    let server = Server::start(&[]);
    let before = server.admin("GET", "/slots", "").json()["assignments"].clone();
    let rules = json!([{ "select": "attention", "use": "attention/cpu-stock" }]).to_string();
    for name in
        ["..", "../live", "..%2Flive", "%2e%2e%2flive", "a/b", "a%00b", "", ".hidden", &"a".repeat(65)]
    {
        let answer = server.admin("PUT", &format!("/assignments/{name}"), &rules);
        assert_eq!((answer.status, code(&answer).as_str()), (400, "invalid_assignment_name"), "{name}");
    }
    for name in ["../live", "..%2Flive"] {
        assert_eq!(server.admin("DELETE", &format!("/assignments/{name}"), "").status, 404, "{name}");
    }
    assert_eq!(code(&server.admin("DELETE", "/assignments/live", "")), "assignment_in_use");
    written(&server, |line| line["action"] == "remove" && line["code"] == "assignment_in_use");

    // A sound plugin outside the plugin directories, and ways to name it.
    let outside = tempfile::tempdir().unwrap();
    let stock = plugins().join("libhotseam_attention_cpu_stock.so");
    let evil = outside.path().join("libhotseam_attention_evil.so");
    std::fs::copy(&stock, &evil).unwrap();
    let inside = tempfile::Builder::new().prefix("links-").tempdir_in(plugins()).unwrap();
    let link = inside.path().join("libhotseam_attention_evil.so");
    symlink(&evil, &link).unwrap();
    let climbing = format!("{}/../../../{}", plugins().display(), evil.display());
    for variant in [evil.to_str().unwrap(), link.to_str().unwrap(), &climbing, "../attention/evil.so"] {
        let request = json!({ "select": "attention", "use": variant });
        for path in ["/swap", "/variant"] {
            let body = if path == "/swap" { request.clone() } else { json!({ "use": variant }) };
            let answer = server.admin("POST", path, &body.to_string());
            let refused =
                matches!((answer.status, code(&answer).as_str()), (403, "E-PLUG-101") | (404, "E-PLUG-100"));
            assert!(refused, "{path} {variant}: {} {}", answer.status, answer.body);
        }
    }
    for variant in ["attention/../x", "attention/", "/", "attention/a/b", "attention/%2e%2e"] {
        let answer = server.admin("POST", "/variant", &json!({ "use": variant }).to_string());
        assert!(answer.status == 400 || answer.status == 404, "{variant}: {}", answer.body);
    }
    assert_eq!(server.admin("GET", "/slots", "").json()["assignments"], before);
    // What was tried is on record.
    let refused =
        |action: &str| written(&server, |line| line["action"] == action && line["code"] == "E-PLUG-101");
    assert!(refused("load")["variant"].is_string());
    let line = refused("swap");
    assert!(line["who"].as_str().unwrap().starts_with("uid "), "{line}");
    assert_eq!(line["assignment"], "live");
}

#[test]
fn a_swap_is_planned_told_written_down_and_taken_back() {
    let server = Server::start(&[]);
    let before = digest(&server, "live");

    // A plan changes nothing; one that would be refused says so.
    let (status, out, err) = server.command(&["swap", CORE, MMA, "--dry-run"]);
    assert_eq!((status, err.as_str()), (0, ""));
    for part in [
        "live: 3 cells would change",
        "attention.core@decode layers 2-4",
        "comes in: attention/cpu-sm120-mma",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, err) =
        server.command(&["swap", "indexer", "indexer/cpu-stock{keys: bf16}", "--dry-run"]);
    assert!(
        status == 1 && err.contains("E-PLUG-402") && out.contains("index key layout of layers 2"),
        "{out}{err}"
    );
    assert_eq!(digest(&server, "live"), before);
    // Code was loaded for it, which is written down.
    let planned = written(&server, |line| line["action"] == "plan" && line["stage"] == "done");
    assert_eq!(planned["hashes"].as_array().unwrap().len(), 1, "{planned}");
    assert_eq!(audit(&server).len(), 4);

    // Every stage is told to whoever listens.
    let mut stream = UnixStream::connect(&server.admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    send(&mut stream, "GET", "/events", "", "");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "event: state"));
    let (status, out, err) = server.command(&["swap", CORE, MMA, "--format", "json"]);
    assert_eq!(status, 0, "{out}{err}");
    for part in
        ["swap 1 live: planned in ", "swap 1 live: conforms", "swap 1 live: in force, 3 cells changed"]
    {
        assert!(err.contains(part), "{part}: {err}");
    }
    let swap: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&swap["swap"], &swap["stage"]["stage"]), (&json!(1), &json!("committed")));
    let hash = swap["newcomers"][0]["hash"].as_str().unwrap().to_owned();
    let mut stages = Vec::new();
    while stages.last().is_none_or(|stage| stage != "committed") {
        let line = lines.next().expect("an event");
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(data).unwrap();
        if let Some(stage) = event["stage"].as_str() {
            assert_eq!((&event["id"], &event["assignment"]), (&json!(1), &json!("live")));
            stages.push(stage.to_owned());
        }
    }
    assert_eq!(stages, ["planned", "conformed", "committed"]);

    // One at a time: while it is in probation another is refused, and says by whom; the way back is open.
    // The other one is loaded already, so that it comes in time.
    let other = json!({ "select": CORE, "use": "attention/cpu-stock" }).to_string();
    let busy = server.admin("POST", "/swap", &other);
    assert_eq!((busy.status, code(&busy).as_str()), (409, "E-PLUG-401"), "{}", busy.body);
    assert!(busy.body.contains("swap 1 is running"), "{}", busy.body);
    let (_, slots, _) = server.command(&["slots"]);
    assert!(slots.contains("swap now     1 live: ") && slots.contains("in probation"), "{slots}");
    let started = Instant::now();
    let (status, out, err) = server.command(&["rollback"]);
    assert!(status == 0 && out.contains("the old variants are back, swap 1"), "{out}{err}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(digest(&server, "live"), before);
    let (_, slots, _) = server.command(&["slots"]);
    assert!(
        slots.contains("last swap    1 live: ") && slots.contains("rolled back: taken back by uid "),
        "{slots}"
    );

    // Who, which code, when, and how it went.
    let end = written(&server, |line| line["stage"] == "rolled_back");
    assert_eq!(end["hashes"], json!([hash]));
    let lines = audit(&server);
    let asked = lines.iter().find(|line| line["action"] == "swap").unwrap();
    assert_eq!((&asked["action"], &asked["stage"]), (&json!("swap"), &json!("asked")));
    assert!(asked["change"].as_str().unwrap().contains(MMA), "{asked}");
    for line in lines {
        assert!(line["at"].as_str().unwrap().ends_with('Z'), "{line}");
        let who = line["who"].as_str().unwrap();
        assert!(who.starts_with("uid ") && who.contains(" pid "), "{line}");
    }

    // Events of a swap that is over are one state; of one that never was, an error.
    let past = server.admin("GET", "/events?swap=1", "");
    assert!(past.status == 200 && past.body.contains("\"stage\":\"rolled_back\""), "{}", past.body);
    assert_eq!(code(&server.admin("GET", "/events?swap=99", "")), "unknown_swap");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn slots_are_saved_and_brought_back() {
    let server = Server::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("monday.yaml");
    let file = file.to_str().unwrap();
    let before = digest(&server, "live");
    let (status, out, err) = server.command(&["slots", "save", file]);
    assert!(status == 0 && out.contains("live; 5 variants"), "{out}{err}");
    let (status, _, err) = server.command(&["swap", CORE, MMA, "--probation", "0"]);
    assert_eq!(status, 0, "{err}");
    let changed = digest(&server, "live");
    assert_ne!(changed, before);

    let (status, out, err) = server.command(&["slots", "load", file, "--dry-run"]);
    assert!(status == 0 && out.contains("live: 3 cells would change"), "{out}{err}");
    assert_eq!(digest(&server, "live"), changed);
    let (status, out, err) = server.command(&["slots", "load", file, "--probation", "0"]);
    assert!(status == 0 && out.contains("live: 3 cells changed"), "{out}{err}");
    assert_eq!(digest(&server, "live"), before);
    let (status, out, _) = server.command(&["slots", "load", file]);
    assert!(status == 0 && out.contains("already so"), "{out}");

    // Code that is not what was saved is no quiet surprise.
    let text = std::fs::read_to_string(file).unwrap();
    let saved = text.lines().find(|line| line.trim_start().starts_with("moe/cpu-stock: ")).unwrap();
    let other = dir.path().join("other.yaml");
    std::fs::write(&other, text.replace(saved, &format!("  moe/cpu-stock: {}", "0".repeat(64)))).unwrap();
    let other = other.to_str().unwrap();
    let (status, _, err) = server.command(&["slots", "load", other]);
    assert!(
        status == 2 && err.contains("expected 000000000000, found ") && err.contains("--any-hash"),
        "{err}"
    );
    let (status, out, err) = server.command(&["slots", "load", other, "--any-hash"]);
    assert!(status == 0 && out.contains("already so"), "{out}{err}");
    for (from, to, part) in [
        ("form: 1", "form: 9", "form 9, this program reads form 1"),
        ("form: 1", "from: 1", "unknown field `from`"),
        ("select: moe", "select: meo", "moe"),
        ("  live:", "  lives:", "no assignment `live`"),
    ] {
        std::fs::write(other, text.replacen(from, to, 1)).unwrap();
        let (status, _, err) = server.command(&["slots", "load", other]);
        assert!(status == 2 && err.contains(part), "{to}: {status} {err}");
    }
    assert_eq!(digest(&server, "live"), before);
}

#[test]
fn a_changed_layout_has_a_way_back() {
    let server = Server::start(&[]);
    let before = digest(&server, "live");
    let narrow = || {
        let args = ["swap", "indexer", "indexer/cpu-stock{keys: bf16}", "--kv", "recompute", "--wait"];
        let (status, out, err) = server.command(&[&args[..], &["--probation", "0"]].concat());
        assert!(status == 0 && out.contains("in force from step 2 on"), "{out}{err}");
    };
    // Both ways back say what a plan would come to, and go with a policy.
    for back in ["rollback", "reload"] {
        narrow();
        let changed = digest(&server, "live");
        assert_ne!(changed, before);
        for args in [vec![back], vec![back, "--dry-run"]] {
            let (status, out, err) = server.command(&args);
            assert!(status == 1 && format!("{out}{err}").contains("E-PLUG-402"), "{args:?} {out}{err}");
            assert_eq!(digest(&server, "live"), changed);
        }
        let (status, _, err) = server.command(&[back, "--dry-run", "--kv", "drain"]);
        assert_eq!((status, err.as_str()), (0, ""));
        let (status, out, err) = server.command(&[back, "--kv", "recompute"]);
        assert!(status == 0 && err.contains("in force, 12 cells changed"), "{out}{err}");
        assert_eq!(digest(&server, "live"), before);
        written(&server, |line| line["stage"] == "kept" && line["swap"].as_u64() > Some(2));
    }
}

#[test]
fn a_reload_swaps_in_what_the_file_says_now() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.yaml");
    let text = |rules: &str, more: &str| {
        format!(
            "model: {{ path: {}/assets/nano-v4 }}\nengine: {{ max_context: 1024, chunk: 256 }}\nassignments:\n  live:\n    \
             - {{ select: attention, use: attention/cpu-stock }}\n    - {{ select: indexer, use: indexer/cpu-stock }}\n    \
             - {{ select: moe, use: moe/cpu-stock }}\n    - {{ select: mhc, use: mhc/cpu-stock }}\n    \
             - {{ select: kv_transport, use: kv_transport/local }}\n{rules}{more}",
            root().display()
        )
    };
    let arm = |name: &str| format!("  {name}: {{ extends: live, rules: [] }}\n");
    let mma = format!("    - {{ select: '{CORE}', use: {MMA} }}\n");
    std::fs::write(&file, text("", &arm("old"))).unwrap();
    let server = Server::serve(&file, &[]);
    let before = digest(&server, "live");
    let (status, out, err) = server.command(&["reload"]);
    assert!(status == 0 && out.contains("live: unchanged") && out.contains("old: unchanged"), "{out}{err}");

    // Changed in four ways; first only told.
    std::fs::write(&file, text(&mma, &arm("new")).replace("chunk: 256", "chunk: 128")).unwrap();
    let (status, out, err) = server.command(&["reload", "--dry-run"]);
    assert_eq!(status, 0, "{err}");
    let told = [
        "plan, nothing was changed",
        "live: 3 cells would change",
        "new: new",
        "old: removed",
        "start: engine.chunk",
    ];
    assert!(told.iter().all(|part| out.contains(part)), "{out}");
    assert_eq!((digest(&server, "live"), digest(&server, "new")), (before.clone(), "none".to_owned()));
    let (status, out, err) = server.command(&["reload"]);
    assert!(status == 0 && out.contains("live: 3 cells changed"), "{out}{err}");
    let after = digest(&server, "live");
    assert_ne!(after, before);
    assert_eq!((digest(&server, "new"), digest(&server, "old")), (after.clone(), "none".to_owned()));

    // Each change stands in the log, with the code that came in.
    let defined = written(&server, |line| line["action"] == "define" && line["stage"] == "done");
    assert!(defined["assignment"] == "new" && !defined["hashes"].as_array().unwrap().is_empty(), "{defined}");
    let removed = written(&server, |line| line["action"] == "remove" && line["stage"] == "done");
    assert_eq!(removed["assignment"], "old");

    // A file with a mistake changes nothing and names its place.
    for (broken, part) in [
        (text("", "").replace("engine:", "engin:"), "server.yaml:2:1: unknown field `engin`"),
        (text("", "").replace("mhc/cpu-stock", "mhc/cpu-stok"), "Did you mean `mhc/cpu-stock`?"),
        (text("", "").replace("select: mhc", "select: mch"), "server.yaml:8:17: "),
    ] {
        std::fs::write(&file, broken).unwrap();
        let (status, _, err) = server.command(&["reload"]);
        assert!(status == 1 && err.contains(part), "{part}: {status} {err}");
        assert_eq!(digest(&server, "live"), after);
    }

    // SIGHUP does the same, and the log says that it was one.
    std::fs::write(&file, text("", &arm("new"))).unwrap();
    server.signal("HUP");
    let line = written(&server, |line| {
        line["action"] == "reload" && line["stage"] == "done" && line["who"] == "signal SIGHUP"
    });
    assert_eq!(line["file"], file.to_str().unwrap());
    assert_eq!(digest(&server, "live"), before);
    assert_eq!(server.stop(), Some(0));
}
