package relay

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

var limits = bounds{filters: 3, values: 5, defaultLimit: 500, maxLimit: 5000}

var (
	a64 = strings.Repeat("a", 64)
	b64 = strings.Repeat("b", 64)
	sig = strings.Repeat("0", 128)
)

// eventJSON is an event with another value of a field; "": it lacks the field.
func eventJSON(field, other string) string {
	fields := map[string]string{
		"id": `"` + a64 + `"`, "pubkey": `"` + b64 + `"`, "created_at": "1700000000", "kind": "1",
		"tags": `[["e","x"],["-"]]`, "content": `"hé \"llo\""`, "sig": `"` + sig + `"`,
	}
	fields[field] = other
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

// TestRefusals: a message is refused in a message of a type that begins so. Besides messages the
// rows have filters of a REQ, and events with another value of one field.
func TestRefusals(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("A64", a64, "UP64", strings.ToUpper(a64), "G128", strings.Repeat("g", 128), "E999", strings.Repeat("é", 999),
		"X251", strings.Repeat("x", 251), "BYTE", "\xff", "TAGS", strings.Repeat(`["a"],`, 10_000))
	begins := map[string]string{"NOTICE": `["NOTICE","`, "CLOSED": `["CLOSED","s","`, "NEG-ERR": `["NEG-ERR","s","`, "OK": `["OK","` + a64 + `",false,"`}
	for _, row := range fixture.Rows(`
		                                            | NOTICE invalid: a message must be a JSON array
		{}                                          | NOTICE invalid: a message must be a JSON array
		[]                                          | NOTICE invalid: a message must begin with its type
		["NOTICEBYTE"]                              | NOTICE invalid: a message must be UTF-8
		[1]                                         | NOTICE invalid: a message must begin with its type
		["event"]                                   | NOTICE invalid: unknown type
		["AUTH",{}]                                 | NOTICE invalid: an event's id
		["AUTH",{"id":"A64"}]                       | OK invalid: an event's pubkey
		["E999"]                                    | NOTICE invalid: unknown type
		["REQ"]                                     | NOTICE invalid: REQ needs
		["REQ",""]                                  | NOTICE invalid: a subscription id must not be empty
		["REQ",1,{}]                                | NOTICE invalid: a subscription id must be a string
		["REQ","X251",{}]                           | NOTICE invalid: a subscription id has at most 250
		["CLOSE","s","b"]                           | CLOSED invalid: CLOSE takes
		["REQ","s"]                                 | CLOSED invalid: REQ needs at least one filter
		["REQ","s",{},{},{},{}]                     | CLOSED invalid: more than 3 filters
		filter {"kinds":[1,2,3],"#e":["a","b","c"]} | CLOSED invalid: 6 values
		filter []                                   | CLOSED invalid: a filter must be a JSON object
		filter {"ids":["UP64"]}                     | CLOSED invalid: ids must be 64
		filter {"ids":"A64"}                        | CLOSED invalid: ids must be a list
		filter {"ids":[null]}                       | CLOSED invalid: ids must be a list
		filter {"IDs":["A64"]}                      | CLOSED unsupported: filters with
		filter {"authors":["npub1x"]}               | CLOSED invalid: authors must be 64
		filter {"kinds":[-1]}                       | CLOSED invalid: kinds
		filter {"kinds":1}                          | CLOSED invalid: kinds
		filter {"since":-1}                         | CLOSED invalid: since
		filter {"until":1e9}                        | CLOSED invalid: until
		filter {"limit":-1}                         | CLOSED invalid: limit
		filter {"search":"x"}                       | CLOSED unsupported: search
		filter {"#ee":["x"]}                        | CLOSED unsupported: filters with
		filter {"#e":[1]}                           | CLOSED invalid: #e must be a list
		filter {"limit":1,"limit":2}                | CLOSED invalid: duplicate field \"limit\"
		["EVENT"]                                   | NOTICE invalid: EVENT takes
		["EVENT",[]]                                | NOTICE invalid: an event must be a JSON object
		event id                                    | NOTICE invalid: an event's id
		event id "UP64"                             | NOTICE invalid: an event's id
		event pubkey                                | OK invalid: an event's pubkey
		event sig "G128"                            | OK invalid: an event's sig
		event created_at -1                         | OK invalid: an event's created_at
		event kind 65536                            | OK invalid: an event's kind
		event content null                          | OK invalid: an event's content
		event tags null                             | OK invalid: an event's tags
		event tags [[]]                             | OK invalid: a tag
		event tags [TAGS["a"]]                      | OK invalid: an event has at most
		event kind 1,"kind":1                       | OK invalid: duplicate field \"kind\"
		["NEG-OPEN","s"]                            | NEG-ERR invalid: NEG-OPEN takes a subscription id, one filter and a message
		["NEG-OPEN","s",{"x":1},"61"]               | NEG-ERR unsupported: filters with
		["NEG-OPEN","s",{"kinds":[1]},"6"]          | NEG-ERR invalid: a message of NIP-77 must be
		["NEG-CLOSE","s",1]                         | NEG-ERR invalid: NEG-CLOSE takes one subscription id`) {
		given := words.Replace(row[0])
		if filter, is := strings.CutPrefix(given, "filter "); is {
			given = `["REQ","s",` + filter + `]`
		} else if field, is := strings.CutPrefix(given, "event "); is {
			name, value, _ := strings.Cut(field, " ")
			given = `["EVENT",` + eventJSON(name, value) + `]`
		}
		kind, reason, _ := strings.Cut(row[1], " ")
		m, err := limits.parse([]byte(given))
		if err == nil {
			t.Errorf("%.200s: taken as %+v", given, m)
			continue
		}
		answer := string(m.refusal(err.Error()))
		if want := begins[kind] + reason; !strings.HasPrefix(answer, want) || !json.Valid([]byte(answer)) || len(answer) > 400 {
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
	for _, seed := range []string{`["EVENT",` + eventJSON("", "") + `]`, `["REQ","s",{"ids":["` + a64 + `"],"#e":["x"],"limit":3,"since":1},{}]`,
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
