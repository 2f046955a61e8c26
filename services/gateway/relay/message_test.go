package relay

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

var limits = bounds{filters: 3, values: 5, defaultLimit: 500, maxLimit: 5000}

var (
	a64 = strings.Repeat("a", 64)
	b64 = strings.Repeat("b", 64)
	sig = strings.Repeat("0", 128)
)

func eventJSON(changes ...string) string {
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
	m, err := limits.parse([]byte(` [ "EVENT" , ` + eventJSON("ots", `"x"`) + ` ] `))
	must(t, err)
	want := &nostr.Event{ID: a64, PubKey: b64, CreatedAt: 1700000000, Kind: 1, Content: `hé "llo"`, Sig: sig,
		Tags: nostr.Tags{{"e", "x"}, {"-"}}}
	if m.verb != "EVENT" || m.id != a64 || !reflect.DeepEqual(m.event, want) {
		t.Errorf("%+v", m)
	}
}

func at(t nostr.Timestamp) *nostr.Timestamp { return &t }

func TestRequest(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]nostr.Filter{
		`{"limit":0}`:                           {LimitZero: true},
		`{"limit":99999999}`:                    {Limit: 5000},
		`{"ids":["` + a64 + `"],"kinds":[0]}`:   {IDs: []string{a64}, Kinds: []int{0}, Limit: 500},
		`{"since":0,"until":1700000000}`:        {Since: at(0), Until: at(1700000000), Limit: 500},
		`{"#e":["x"],"#T":["","\u00e9\n"]}`:     {Tags: nostr.TagMap{"e": {"x"}, "T": {"", "é\n"}}, Limit: 500},
		` { "kinds" : [ 1 , 2 ] , "limit":1 } `: {Kinds: []int{1, 2}, Limit: 1},
	} {
		data := []byte(`["REQ","s",` + given + `]`)
		m, err := limits.parse(data)
		if err != nil || m.verb != "REQ" || m.id != "s" || m.size != len(data) || len(m.filters) != 1 || !reflect.DeepEqual(m.filters[0], want) {
			t.Errorf("%s: %+v, %v", given, m, err)
		}
	}
	many := bounds{filters: 1, values: 100, defaultLimit: 2, maxLimit: 3}
	m, err := many.parse([]byte(`["REQ","s",{"ids":["` + strings.Repeat(a64+`","`, 9) + a64 + `"]}]`))
	if err != nil || m.filters[0].Limit != 3 {
		t.Errorf("ten ids: %+v, %v", m, err)
	}
}

func TestOtherMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 250)
	kind1 := []nostr.Filter{{Kinds: []int{1}}}
	for given, want := range map[string]message{
		`["COUNT","` + long + `",{"kinds":[1]}]`: {verb: "COUNT", id: long, filters: kind1},
		`["CLOSE","x"]`:                          {verb: "CLOSE", id: "x"},
		`["NEG-OPEN","a",{"kinds":[1]},"6100"]`:  {verb: "NEG-OPEN", id: "a", filters: kind1, frame: []byte{0x61, 0}},
		`["NEG-OPEN","a",{"limit":70000},""]`:    {verb: "NEG-OPEN", id: "a", filters: []nostr.Filter{{Limit: 70000}}, frame: []byte{}},
		`["NEG-MSG","a","61FF"]`:                 {verb: "NEG-MSG", id: "a", frame: []byte{0x61, 0xff}},
		`["NEG-CLOSE","a"]`:                      {verb: "NEG-CLOSE", id: "a"},
	} {
		want.size = len(given)
		if m, err := limits.parse([]byte(given)); err != nil || !reflect.DeepEqual(m, want) {
			t.Errorf("%s: %+v, %v", given, m, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	req := func(filter string) string { return `["REQ","s",` + filter + `]` }
	ev := func(changes ...string) string { return `["EVENT",` + eventJSON(changes...) + `]` }
	const notice, closed, negErr, ok = `["NOTICE","`, `["CLOSED","s","`, `["NEG-ERR","s","`, `["OK","`
	for given, want := range map[string]string{
		``:                                     notice + "invalid: a message must be a JSON array",
		`{}`:                                   notice + "invalid: a message must be a JSON array",
		`[]`:                                   notice + "invalid: a message must begin with its type",
		"[\"NOTICE\xff\"]":                     notice + "invalid: a message must be UTF-8",
		`[1]`:                                  notice + "invalid: a message must begin with its type",
		`["event"]`:                            notice + "invalid: unknown type",
		`["AUTH",{}]`:                          notice + "invalid: an event's id",
		`["AUTH",{"id":"` + a64 + `"}]`:        ok + a64 + `",false,"invalid: an event's pubkey`,
		`["` + strings.Repeat("é", 999) + `"]`: notice + "invalid: unknown type",
		`["REQ"]`:                              notice + "invalid: REQ needs",
		`["REQ",""]`:                           notice + "invalid: a subscription id must not be empty",
		`["REQ",1,{}]`:                         notice + "invalid: a subscription id must be a string",
		`["REQ","` + strings.Repeat("x", 251) + `",{}]`: notice + "invalid: a subscription id has at most 250",
		`["CLOSE","s","b"]`:                             closed + "invalid: CLOSE takes",
		`["REQ","s"]`:                                   closed + "invalid: REQ needs at least one filter",
		`["REQ","s",{},{},{},{}]`:                       closed + "invalid: more than 3 filters",
		req(`{"kinds":[1,2,3],"#e":["a","b","c"]}`):     closed + "invalid: 6 values",
		req(`[]`): closed + "invalid: a filter must be a JSON object",
		req(`{"ids":["` + strings.ToUpper(a64) + `"]}`): closed + "invalid: ids must be 64",
		req(`{"ids":"` + a64 + `"}`):                    closed + "invalid: ids must be a list",
		req(`{"ids":[null]}`):                           closed + "invalid: ids must be a list",
		req(`{"IDs":["` + a64 + `"]}`):                  closed + "unsupported: filters with",
		req(`{"authors":["npub1x"]}`):                   closed + "invalid: authors must be 64",
		req(`{"kinds":[-1]}`):                           closed + "invalid: kinds",
		req(`{"kinds":1}`):                              closed + "invalid: kinds",
		req(`{"since":-1}`):                             closed + "invalid: since",
		req(`{"until":1e9}`):                            closed + "invalid: until",
		req(`{"limit":-1}`):                             closed + "invalid: limit",
		req(`{"search":"x"}`):                           closed + "unsupported: search",
		req(`{"#ee":["x"]}`):                            closed + "unsupported: filters with",
		req(`{"#e":[1]}`):                               closed + "invalid: #e must be a list",
		req(`{"limit":1,"limit":2}`):                    closed + `invalid: \"limit\" stands twice`,
		`["EVENT"]`:                                     notice + "invalid: EVENT takes",
		`["EVENT",[]]`:                                  notice + "invalid: an event must be a JSON object",
		ev("id", ""):                                    notice + "invalid: an event's id",
		ev("id", `"`+strings.ToUpper(a64)+`"`):          notice + "invalid: an event's id",
		ev("pubkey", ""):                                ok + a64 + `",false,"invalid: an event's pubkey`,
		ev("sig", `"`+strings.Repeat("g", 128)+`"`):     ok + a64 + `",false,"invalid: an event's sig`,
		ev("created_at", "-1"):                          ok + a64 + `",false,"invalid: an event's created_at`,
		ev("kind", "65536"):                             ok + a64 + `",false,"invalid: an event's kind`,
		ev("content", "null"):                           ok + a64 + `",false,"invalid: an event's content`,
		ev("tags", "null"):                              ok + a64 + `",false,"invalid: an event's tags`,
		ev("tags", `[[]]`):                              ok + a64 + `",false,"invalid: a tag`,
		ev("tags", "["+strings.Repeat(`["a"],`, 10_000)+`["a"]]`):          ok + a64 + `",false,"invalid: an event has at most`,
		`["EVENT",` + strings.TrimSuffix(eventJSON(), "}") + `,"kind":1}]`: ok + a64 + `",false,"invalid: \"kind\" stands twice`,
		`["NEG-OPEN","s"]`:                   negErr + "invalid: NEG-OPEN takes a subscription id, one filter and a message",
		`["NEG-OPEN","s",{"x":1},"61"]`:      negErr + "unsupported: filters with",
		`["NEG-OPEN","s",{"kinds":[1]},"6"]`: negErr + "invalid: a message of NIP-77 must be",
		`["NEG-CLOSE","s",1]`:                negErr + "invalid: NEG-CLOSE takes one subscription id",
	} {
		m, err := limits.parse([]byte(given))
		if err == nil {
			t.Errorf("%.200s: taken as %+v", given, m)
			continue
		}
		answer := string(m.refusal(err.Error()))
		if !strings.HasPrefix(answer, want) || !json.Valid([]byte(answer)) || len(answer) > 400 {
			t.Errorf("%.200s:\n got %.300s\nwant %s…", given, answer, want)
		}
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	if got := encode("OK", "\n", true, `a "b" <c>`); string(got) != `["OK","\n",true,"a \"b\" <c>"]` {
		t.Errorf("%s", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`["EVENT",` + eventJSON() + `]`, `["REQ","s",{"ids":["` + a64 + `"],"#e":["x"],"limit":3,"since":1},{}]`,
		`["COUNT","é",{"kinds":[1]}]`, `["CLOSE","x"]`, `["EVENT",{"id":"` + a64 + `","tags":[[]]}]`, `[null,{}]`, "[\"\\ud800\"]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := limits.parse(data)
		if err != nil {
			if answer := m.refusal(err.Error()); !json.Valid(answer) || len(answer) > 4096 {
				t.Fatalf("refused badly: %v", err)
			}
			return
		}
		if m.event != nil {
			// What is taken must survive being passed on: the same event is read again from what we
			// send.
			raw, err := m.event.MarshalJSON()
			must(t, err)
			again, err := limits.parse([]byte(`["EVENT",` + string(raw) + `]`))
			if err != nil || !reflect.DeepEqual(again.event, m.event) {
				t.Fatalf("%s: %v", raw, err)
			}
			m.event.CheckID()
			m.event.CheckSignature()
		}
		for _, filter := range m.filters {
			if m.verb == "REQ" && (filter.Limit > limits.maxLimit || filter.Limit < 0 || (filter.Limit == 0) != filter.LimitZero) {
				t.Fatalf("limit of %+v", filter)
			}
		}
	})
}
