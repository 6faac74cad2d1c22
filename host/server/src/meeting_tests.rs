//! Bodies as routers send them, and those that they should not.

use serde_json::json;

use super::*;

fn read(body: Value) -> Result<Option<Meeting>, ApiError> {
    take(&mut Fields::parse(body.to_string().as_bytes())?)
}

fn place(host: &str, port: u16, room: u64) -> Place {
    Place { host: host.to_owned(), port, room }
}

fn assigned(meeting: &Meeting, choices: usize, prompts: usize) -> Result<Vec<Bootstrap>, ApiError> {
    let mut requests = vec![Request::greedy(vec![1], 1); choices];
    meeting.assign(&mut requests, prompts, Some(("me".to_owned(), 8001)))?;
    Ok(requests.into_iter().map(|request| request.disaggregation.expect("assigned")).collect())
}

fn rooms(meeting: &Meeting, choices: usize, prompts: usize) -> Vec<u64> {
    assigned(meeting, choices, prompts).expect("fits").into_iter().map(|place| place.room).collect()
}

#[test]
fn bootstrap_fields_single_and_in_lists() {
    let room = (1u64 << 63) - 1;
    let one = json!({"bootstrap_host": "p", "bootstrap_port": 8998, "bootstrap_room": room});
    assert_eq!(read(one).expect("valid"), Some(Meeting::Rooms(vec![place("p", 8998, room)])));
    let two = json!({"bootstrap_host": ["p", "q"], "bootstrap_port": [1, 2], "bootstrap_room": [7, 8]});
    let two = read(two).expect("valid").expect("a meeting");
    assert_eq!(two, Meeting::Rooms(vec![place("p", 1, 7), place("q", 2, 8)]));
    let got = assigned(&two, 2, 1).expect("fits");
    assert_eq!((got[1].host.as_str(), got[1].port, got[1].room, got[1].hold), ("q", 2, 8, false));
    let absent = json!({"bootstrap_host": null, "bootstrap_port": null, "bootstrap_room": null});
    assert_eq!(read(absent).expect("valid"), None);
}

#[test]
fn one_room_of_several_choices_gives_both_workers_the_same_rooms() {
    let one = Meeting::Rooms(vec![place("p", 1, 7)]);
    let spread = rooms(&one, 3, 1);
    assert_eq!((spread[0], &spread), (7, &rooms(&one, 3, 1)));
    assert!(spread[1] != spread[2] && spread.iter().all(|room| *room < ROOMS));
    let two = Meeting::Rooms(vec![place("p", 1, 7), place("p", 1, 9)]);
    assert_eq!(rooms(&two, 2, 2), [7, 9]);
    let four = rooms(&two, 4, 2);
    assert_eq!((four[0], four[1], four[2]), (7, spread[1], 9));
    let error = assigned(&two, 6, 3).expect_err("two of three");
    assert_eq!(
        error.message,
        "`bootstrap_room`: expected 1 room, one for each of 3 prompts or of 6 choices, found 2"
    );
}

#[test]
fn vllm_asks_prefill_first_and_hands_its_answer_to_decode() {
    let ask = json!({"kv_transfer_params": {
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null, "remote_block_ids": null,
        "remote_host": null, "remote_port": null
    }});
    let hold = read(ask).expect("valid").expect("a meeting");
    assert_eq!(hold, Meeting::Hold);
    let mut requests = vec![Request::greedy(vec![1], 1); 2];
    let own = Some(("prefill".to_owned(), 8001));
    let answer = hold.assign(&mut requests, 1, own).expect("fits").expect("an answer");
    let held = requests[1].disaggregation.clone().expect("assigned");
    assert_eq!((held.host.as_str(), held.port, held.hold), ("prefill", 8001, true));
    let decode = read(json!({ "kv_transfer_params": answer })).expect("valid").expect("a meeting");
    let got = assigned(&decode, 2, 1).expect("fits");
    assert_eq!(got[1], Bootstrap { hold: false, ..held });
    assert!(hold.assign(&mut requests, 1, None).is_err());
    let nothing = json!({"kv_transfer_params": {"do_remote_decode": false, "do_remote_prefill": false}});
    assert_eq!(read(nothing).expect("valid"), None);
}

#[test]
fn what_is_wrong_is_named() {
    let full = |name: &str, value: Value| {
        let mut body = json!({"bootstrap_host": "p", "bootstrap_port": 1, "bootstrap_room": 7});
        body[name] = value;
        body
    };
    let params = |params: Value| json!({ "kv_transfer_params": params });
    let both = |mut body: Value| {
        body["kv_transfer_params"] = json!({"do_remote_decode": true});
        body
    };
    let all = [
        (
            full("bootstrap_room", json!(u64::MAX)),
            "`bootstrap_room`: expected an integer from 0 to 9223372036854775807, found 18446744073709551615",
        ),
        (
            full("bootstrap_room", json!(1.5)),
            "`bootstrap_room`: expected an integer from 0 to 9223372036854775807, found 1.5",
        ),
        (
            full("bootstrap_room", json!([7, "x"])),
            "`bootstrap_room`: expected an integer from 0 to 9223372036854775807, found a string",
        ),
        (
            full("bootstrap_room", Value::Null),
            "`bootstrap_room`: required, expected with the other bootstrap fields",
        ),
        (
            full("bootstrap_port", Value::Null),
            "`bootstrap_port`: required, expected a port, or the router was not told it: `--prefill URL PORT`",
        ),
        (
            full("bootstrap_port", json!([null])),
            "`bootstrap_port`: expected a port, or the router was not told it: `--prefill URL PORT`, found null",
        ),
        (
            full("bootstrap_port", json!(70_000)),
            "`bootstrap_port`: expected a port, or the router was not told it: `--prefill URL PORT`, found 70000",
        ),
        (
            full("bootstrap_host", json!(["p", "q"])),
            "`bootstrap_host`: expected as many as `bootstrap_room`, 1, found 2",
        ),
        (
            both(full("bootstrap_port", json!(1))),
            "`kv_transfer_params`: only allowed without `bootstrap_room`; a request has one router",
        ),
        (params(json!(3)), "`kv_transfer_params`: expected an object, found a number"),
        (
            params(json!({"do_remote_decode": true, "do_remote_prefill": true})),
            "`kv_transfer_params.do_remote_decode`: only allowed without `do_remote_prefill`; a worker does one of them",
        ),
        (
            params(json!({"do_remote_prefill": true, "remote_port": 1})),
            "`kv_transfer_params.remote_host`: required, expected what the prefill worker answered",
        ),
        (
            params(json!({"remote_hots": "p"})),
            "`kv_transfer_params.remote_hots`: unknown field; did you mean `remote_host`?",
        ),
    ];
    for (body, message) in all {
        assert_eq!(read(body).expect_err("accepted").message, message);
    }
}

#[test]
fn a_role_refuses_by_name_what_it_does_not_do() {
    let (rooms, held) = (Meeting::Rooms(vec![place("p", 1, 7)]), Meeting::Held(vec![place("p", 1, 7)]));
    let allowed = [
        (&rooms, [false, true, true]),
        (&Meeting::Hold, [false, true, false]),
        (&held, [false, false, true]),
    ];
    for (meeting, expected) in allowed {
        let suits = [Role::Single, Role::Prefill, Role::Decode].map(|role| meeting.suits(role).is_ok());
        assert_eq!(suits, expected, "{meeting:?}");
    }
    let error = rooms.suits(Role::Single).expect_err("refused");
    assert_eq!((error.param.as_deref(), error.code.as_deref()), (Some("bootstrap_room"), Some("wrong_role")));
    assert!(error.message.contains("role single") && error.message.contains("start it with the role"));
}
