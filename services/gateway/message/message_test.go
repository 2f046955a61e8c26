package message_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/gateway/message"
)

var limits = message.Limits{Filters: 3, Values: 5, DefaultLimit: 500, MaxLimit: 5000}

var (
	a64 = strings.Repeat("a", 64)
	b64 = strings.Repeat("b", 64)
	sig = strings.Repeat("0", 128)
)

func event(changes ...string) string {
	fields := map[string]string{
		"id": `"` + a64 + `"`, "pubkey": `"` + b64 + `"`, "created_at": "1700000000", "kind": "1",
		"tags": `[["e","x"],["-"]]`, "content": `"hé \"llo\""`, "sig": `"` + sig + `"`,
	}
	for i := 0; i < len(changes); i += 2 {
		fields[changes[i]] = changes[i+1]
	}
	var parts []string
	for name, value := range fields {
		if value != "" {
			parts = append(parts, `"`+name+`":`+value)
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestEvent(t *testing.T) {
	t.Parallel()
	m, err := limits.Parse([]byte(` [ "EVENT" , ` + event("ots", `"x"`) + ` ] `))
	if err != nil {
		t.Fatal(err)
	}
	want := message.Event{Event: &nostr.Event{ID: a64, PubKey: b64, CreatedAt: 1700000000, Kind: 1, Content: `hé "llo"`, Sig: sig,
		Tags: nostr.Tags{{"e", "x"}, {"-"}}}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v", m.(message.Event).Event)
	}
}

func at(t nostr.Timestamp) *nostr.Timestamp { return &t }

func TestRequest(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]nostr.Filter{
		`{}`:                                    {Limit: 500},
		`{"limit":7}`:                           {Limit: 7},
		`{"limit":0}`:                           {LimitZero: true},
		`{"limit":99999999}`:                    {Limit: 5000},
		`{"ids":[]}`:                            {IDs: []string{}, Limit: 500},
		`{"ids":["` + a64 + `"],"kinds":[0]}`:   {IDs: []string{a64}, Kinds: []int{0}, Limit: 500},
		`{"authors":["` + a64 + `"]}`:           {Authors: []string{a64}, Limit: 500},
		`{"kinds":[0,65535]}`:                   {Kinds: []int{0, 65535}, Limit: 500},
		`{"since":0,"until":1700000000}`:        {Since: at(0), Until: at(1700000000), Limit: 500},
		`{"#e":["x"],"#T":["","\u00e9\n"]}`:     {Tags: nostr.TagMap{"e": {"x"}, "T": {"", "é\n"}}, Limit: 500},
		` { "kinds" : [ 1 , 2 ] , "limit":1 } `: {Kinds: []int{1, 2}, Limit: 1},
	} {
		data := []byte(`["REQ","s",` + given + `]`)
		m, err := limits.Parse(data)
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		r := m.(message.Request)
		if r.ID != "s" || r.Size != len(data) || len(r.Filters) != 1 || !reflect.DeepEqual(r.Filters[0], want) {
			t.Errorf("%s: %+v", given, r)
		}
	}
	many := message.Limits{Filters: 1, Values: 100, DefaultLimit: 2, MaxLimit: 3}
	m, err := many.Parse([]byte(`["REQ","s",{"ids":["` + strings.Repeat(a64+`","`, 9) + a64 + `"]}]`))
	if err != nil || m.(message.Request).Filters[0].Limit != 3 {
		t.Errorf("ten ids: %+v, %v", m, err)
	}
	long := strings.Repeat("é", 250)
	if m, err := limits.Parse([]byte(`["COUNT","` + long + `",{},{"kinds":[1]}]`)); err != nil || m.(message.Count).ID != long || len(m.(message.Count).Filters) != 2 {
		t.Errorf("COUNT: %+v, %v", m, err)
	}
	if m, err := limits.Parse([]byte(`["CLOSE","x"]`)); err != nil || m != (message.Close{ID: "x"}) {
		t.Errorf("CLOSE: %+v, %v", m, err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	req := func(filter string) string { return `["REQ","s",` + filter + `]` }
	ev := func(changes ...string) string { return `["EVENT",` + event(changes...) + `]` }
	const notice, closed, ok = `["NOTICE","`, `["CLOSED","s","`, `["OK","`
	for given, want := range map[string]string{
		``:                                     notice + "invalid: a message must be a JSON array",
		`null`:                                 notice + "invalid: a message must be a JSON array",
		`{}`:                                   notice + "invalid: a message must be a JSON array",
		`[]`:                                   notice + "invalid: a message must begin with its type",
		`["REQ","s",{}`:                        notice + "invalid: a message must be a JSON array",
		`["REQ","s",{}] x`:                     notice + "invalid: a message must be a JSON array",
		"[\"NOTICE\xff\"]":                     notice + "invalid: a message must be UTF-8",
		`[1]`:                                  notice + "invalid: a message must begin with its type",
		`[null]`:                               notice + "invalid: a message must begin with its type",
		`["event"]`:                            notice + "invalid: unknown type",
		`["AUTH"]`:                             notice + "invalid: AUTH takes one event",
		`["AUTH","x"]`:                         notice + "invalid: an event must be a JSON object",
		`["AUTH",{}]`:                          notice + "invalid: an event's id",
		`["AUTH",{"id":"` + a64 + `"}]`:        ok + a64 + `",false,"invalid: an event's pubkey`,
		`["CHALLENGE","x"]`:                    notice + "invalid: unknown type",
		`["` + strings.Repeat("é", 999) + `"]`: notice + "invalid: unknown type",
		`["REQ"]`:                              notice + "invalid: REQ needs",
		`["REQ",""]`:                           notice + "invalid: a subscription id must not be empty",
		`["REQ",1,{}]`:                         notice + "invalid: a subscription id must be a string",
		`["REQ","` + strings.Repeat("x", 251) + `",{}]`: notice + "invalid: a subscription id has at most 250",
		`["CLOSE"]`:               notice + "invalid: CLOSE needs",
		`["CLOSE","s","b"]`:       closed + "invalid: CLOSE takes",
		`["CLOSE",null]`:          notice + "invalid: a subscription id must be a string",
		`["REQ","s"]`:             closed + "invalid: REQ needs at least one filter",
		`["COUNT","s"]`:           closed + "invalid: COUNT needs at least one filter",
		`["REQ","s",{},{},{},{}]`: closed + "invalid: more than 3 filters",
		req(`{"kinds":[1,2,3],"#e":["a","b","c"]}`): closed + "invalid: 6 values",
		req(`[]`):   closed + "invalid: a filter must be a JSON object",
		req(`null`): closed + "invalid: a filter must be a JSON object",
		req(`"x"`):  closed + "invalid: a filter must be a JSON object",
		req(`{"ids":["` + strings.ToUpper(a64) + `"]}`): closed + "invalid: ids must be 64",
		req(`{"ids":["` + a64[1:] + `"]}`):              closed + "invalid: ids must be 64",
		req(`{"ids":"` + a64 + `"}`):                    closed + "invalid: ids must be a list",
		req(`{"ids":null}`):                             closed + "invalid: ids must be a list",
		req(`{"ids":[null]}`):                           closed + "invalid: ids must be a list",
		req(`{"IDs":["` + a64 + `"]}`):                  closed + "unsupported: filters with",
		req(`{"authors":["npub1x"]}`):                   closed + "invalid: authors must be 64",
		req(`{"kinds":[-1]}`):                           closed + "invalid: kinds",
		req(`{"kinds":[65536]}`):                        closed + "invalid: kinds",
		req(`{"kinds":[1.0]}`):                          closed + "invalid: kinds",
		req(`{"kinds":["1"]}`):                          closed + "invalid: kinds",
		req(`{"kinds":1}`):                              closed + "invalid: kinds",
		req(`{"kinds":[null]}`):                         closed + "invalid: kinds",
		req(`{"since":-1}`):                             closed + "invalid: since",
		req(`{"since":null}`):                           closed + "invalid: since",
		req(`{"until":1e9}`):                            closed + "invalid: until",
		req(`{"until":99999999999999999999}`):           closed + "invalid: until",
		req(`{"limit":-1}`):                             closed + "invalid: limit",
		req(`{"limit":"1"}`):                            closed + "invalid: limit",
		req(`{"search":"x"}`):                           closed + "unsupported: search",
		req(`{"#":["x"]}`):                              closed + "unsupported: filters with",
		req(`{"#ee":["x"]}`):                            closed + "unsupported: filters with",
		req(`{"#1":["x"]}`):                             closed + "unsupported: filters with",
		req(`{"#e":[1]}`):                               closed + "invalid: #e must be a list",
		req(`{"#e":[["x"]]}`):                           closed + "invalid: #e must be a list",
		req(`{"limit":1,"limit":2}`):                    closed + `invalid: \"limit\" stands twice`,
		`["EVENT"]`:                                     notice + "invalid: EVENT takes",
		`["EVENT",{},{}]`:                               notice + "invalid: EVENT takes",
		`["EVENT",[]]`:                                  notice + "invalid: an event must be a JSON object",
		`["EVENT",null]`:                                notice + "invalid: an event must be a JSON object",
		ev("id", ""):                                    notice + "invalid: an event's id",
		ev("id", `"`+strings.ToUpper(a64)+`"`):          notice + "invalid: an event's id",
		ev("id", "null"):                                notice + "invalid: an event's id",
		ev("id", "", "ID", `"`+a64+`"`):                 notice + "invalid: an event's id",
		ev("pubkey", ""):                                ok + a64 + `",false,"invalid: an event's pubkey`,
		ev("pubkey", `"`+strings.ToUpper(b64)+`"`):      ok + a64 + `",false,"invalid: an event's pubkey`,
		ev("sig", `"`+sig+`00"`):                        ok + a64 + `",false,"invalid: an event's sig`,
		ev("sig", `"`+strings.Repeat("g", 128)+`"`):     ok + a64 + `",false,"invalid: an event's sig`,
		ev("created_at", `"1"`):                         ok + a64 + `",false,"invalid: an event's created_at`,
		ev("created_at", "-1"):                          ok + a64 + `",false,"invalid: an event's created_at`,
		ev("created_at", "1.5"):                         ok + a64 + `",false,"invalid: an event's created_at`,
		ev("kind", "65536"):                             ok + a64 + `",false,"invalid: an event's kind`,
		ev("kind", "-1"):                                ok + a64 + `",false,"invalid: an event's kind`,
		ev("kind", "null"):                              ok + a64 + `",false,"invalid: an event's kind`,
		ev("content", "null"):                           ok + a64 + `",false,"invalid: an event's content`,
		ev("tags", "null"):                              ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", "{}"):                                ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", `["e"]`):                             ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", `[["e",1]]`):                         ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", `[["e",null]]`):                      ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", `[[]]`):                              ok + a64 + `",false,"invalid: a tag`,
		ev("tags", `[null]`):                            ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", "["+strings.Repeat(`["a"],`, 10_000)+`["a"]]`):      ok + a64 + `",false,"invalid: an event has at most`,
		`["EVENT",` + strings.TrimSuffix(event(), "}") + `,"kind":1}]`: ok + a64 + `",false,"invalid: \"kind\" stands twice`,
	} {
		m, err := limits.Parse([]byte(given))
		var refused *message.Error
		if !errors.As(err, &refused) {
			t.Errorf("%.200s: taken as %+v", given, m)
			continue
		}
		answer := string(refused.Answer())
		if !strings.HasPrefix(answer, want) || !json.Valid([]byte(answer)) || len(answer) > 400 {
			t.Errorf("%.200s:\n got %.300s\nwant %s…", given, answer, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for want, got := range map[string][]byte{
		`["OK","x",true,"a \"b\" <c>"]`:                message.OK("x", true, `a "b" <c>`),
		`["EOSE","\n"]`:                                message.EOSE("\n"),
		`["CLOSED","s","error: x"]`:                    message.Closed("s", "error: x"),
		`["NOTICE","n"]`:                               message.Notice("n"),
		`["COUNT","s",{"count":0}]`:                    message.Counted("s", 0, false),
		`["COUNT","s",{"count":5,"approximate":true}]`: message.Counted("s", 5, true),
		`["EVENT","s\"",`:                              message.EventHead(`s"`),
	} {
		if string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`["EVENT",` + event() + `]`, `["REQ","s",{"ids":["` + a64 + `"],"#e":["x"],"limit":3,"since":1},{}]`,
		`["COUNT","é",{"kinds":[1]}]`, `["CLOSE","x"]`, `["EVENT",{"id":"` + a64 + `","tags":[[]]}]`, `[null,{}]`, "[\"\\ud800\"]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := limits.Parse(data)
		if err != nil {
			var refused *message.Error
			if !errors.As(err, &refused) || !json.Valid(refused.Answer()) || len(refused.Answer()) > 4096 {
				t.Fatalf("refused badly: %v", err)
			}
			return
		}
		switch m := m.(type) {
		case message.Event:
			// What is taken must survive being passed on: the same event is read again from what we
			// send.
			raw, err := m.Event.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			again, err := limits.Parse([]byte(`["EVENT",` + string(raw) + `]`))
			if err != nil || !reflect.DeepEqual(again, m) {
				t.Fatalf("%s: %v", raw, err)
			}
			m.Event.CheckID()
			m.Event.CheckSignature()
		case message.Request:
			for _, filter := range m.Filters {
				if filter.Limit > limits.MaxLimit || filter.Limit < 0 || (filter.Limit == 0) != filter.LimitZero {
					t.Fatalf("limit of %+v", filter)
				}
			}
			if !json.Valid(append(append(message.EventHead(m.ID), "{}"...), ']')) {
				t.Fatalf("id %q", m.ID)
			}
		}
	})
}
