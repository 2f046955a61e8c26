package writer

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

func someEvent() *nostr.Event {
	ev := &nostr.Event{
		PubKey: strings.Repeat("a", 64), Kind: 1, CreatedAt: 1000, Content: `a <b> & "c"` + "\n\u2028",
		Tags: nostr.Tags{{"e", strings.Repeat("b", 64)}, {}}, Sig: strings.Repeat("c", 128),
	}
	ev.ID = ev.GetID()
	return ev
}

func text(ev *nostr.Event) string { return string(nostr.Encode(ev)) }

func header(pairs ...string) nats.Header {
	h := nats.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// alone is the candidate of a pack of one, with what the pack says.
type alone struct {
	*policy.Candidate
	reply, ref string
}

func parse(subject string, header nats.Header, data []byte) (alone, error) {
	p := readPack(&message{subject: subject, header: header, data: data})
	c := alone{p.events[0], p.reply, p.ref}
	if len(p.events) != 1 || c.Candidate == nil {
		return c, errors.New(p.verdicts[0].Message)
	}
	return c, nil
}

func TestParse(t *testing.T) {
	t.Parallel()
	data := text(someEvent())
	all := header(
		proto.HeaderSource, "daily", proto.HeaderRelay, "wss://r.example.org", proto.HeaderReply, "grasp.verdict.Inbox1",
		proto.HeaderRef, "7", proto.HeaderTraceParent, "00-11,00-22", proto.HeaderAction, "release", proto.HeaderClient, "192.0.2.1",
	)
	c, err := parse("grasp.candidate.sync.daily", all, []byte(data))
	if err != nil || c.Relay != "wss://r.example.org" || c.reply != "grasp.verdict.Inbox1" || c.ref != "7" || c.Trace != "00-11" || c.Event.ID != someEvent().ID || string(c.Raw) != data {
		t.Errorf("%+v, %v", c, err)
	}
	// No header says more than the lane.
	for _, tc := range []struct {
		subject string
		header  nats.Header
		want    policy.Candidate
	}{
		{"grasp.candidate.sync.daily", all, policy.Candidate{Lane: proto.LaneSyncDaily, Source: proto.SourceDaily}},
		{"grasp.candidate.import", all, policy.Candidate{Lane: proto.LaneImport, Source: proto.SourceImport}},
		{"grasp.candidate.user", all, policy.Candidate{Lane: proto.LaneUser, Source: proto.SourceUser, Client: "192.0.2.1"}},
	} {
		c, err := parse(tc.subject, tc.header, []byte(data))
		if err != nil || c.Lane != tc.want.Lane || c.Source != tc.want.Source || c.Client != tc.want.Client || c.Action != "" {
			t.Errorf("%s: %+v, %v", tc.subject, c.Candidate, err)
		}
	}
	// Nor does the log hold what is not the event.
	padded := " " + strings.Replace(data, `{"kind"`, `{ "content":"of another","kind"`, 1)
	if c, err = parse("grasp.candidate.user", nil, []byte(padded)); err != nil || string(c.Raw) != data {
		t.Errorf("raw %s, %v", c.Raw, err)
	}
	// Headers that are too long, or no subject of verdicts, are dropped.
	long := strings.Repeat("x", 1000)
	c, err = parse("grasp.candidate.user", header(
		proto.HeaderRelay, long, proto.HeaderRef, long, proto.HeaderReason, long, proto.HeaderTraceParent, long, proto.HeaderReply, "_INBOX.x",
	), []byte(data))
	if err != nil || c.Relay+c.ref+c.Reason+c.Trace+c.reply != "" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	good, forged := text(someEvent()), someEvent()
	forged.Content = "another"
	refuse := func(what, subject, data string, headers ...string) {
		t.Helper()
		c, err := parse(subject, header(append(headers, proto.HeaderReply, "grasp.verdict.me", proto.HeaderRef, "ref")...), []byte(data))
		if err == nil {
			t.Errorf("%s: taken", what)
		}
		if c.reply != "grasp.verdict.me" || c.ref != "ref" {
			t.Errorf("%s: the sender is not told", what)
		}
	}
	refuse("unknown lane", "grasp.candidate.vip", good)
	refuse("foreign subject", "grasp.event.1", good)
	refuse("sync without source", "grasp.candidate.sync.live", good)
	refuse("an import on the lane of live events", "grasp.candidate.sync.live", good, proto.HeaderSource, "import")
	refuse("sync of a user", "grasp.candidate.sync.live", good, proto.HeaderSource, "direct")
	refuse("release without action", "grasp.candidate.release", good)
	refuse("unknown action", "grasp.candidate.release", good, proto.HeaderAction, "burn")
	for _, data := range []string{"", "null", "{", "[]", good + "x", strings.Replace(good, "a <b>", "a \xff", 1), text(forged)} {
		refuse(data, "grasp.candidate.user", data)
	}
	for what, change := range map[string]func(*nostr.Event){
		"short key":      func(ev *nostr.Event) { ev.PubKey = "ab" },
		"upper-case key": func(ev *nostr.Event) { ev.PubKey = strings.Repeat("A", 64) },
		"no signature":   func(ev *nostr.Event) { ev.Sig = "" },
		"negative kind":  func(ev *nostr.Event) { ev.Kind = -1 },
		"large kind":     func(ev *nostr.Event) { ev.Kind = 65536 },
		"negative time":  func(ev *nostr.Event) { ev.CreatedAt = -1 },
		"endless time":   func(ev *nostr.Event) { ev.CreatedAt = 1 << 40 },
		"too large":      func(ev *nostr.Event) { ev.Content = strings.Repeat("x", maxEventBytes) },
	} {
		ev := someEvent()
		change(ev)
		ev.ID = ev.GetID()
		refuse(what, "grasp.candidate.user", text(ev))
	}
}

// What comes out of any input is an event whose id is right and whose JSON says the same
// again.
func FuzzParse(f *testing.F) {
	f.Add("grasp.candidate.user", "direct", "", "grasp.verdict.a", []byte(text(someEvent())))
	f.Add("grasp.candidate.release", "release", "expire", "x", []byte(`{"id":"","kind":1,"tags":[["e",null],null]}`))
	f.Fuzz(func(t *testing.T, subject, source, action, reply string, data []byte) {
		c, err := parse(subject, header(proto.HeaderSource, source, proto.HeaderAction, action, proto.HeaderReply, reply), data)
		if err != nil {
			return
		}
		if !c.Event.CheckID() || len(c.Raw) > maxEventBytes {
			t.Fatalf("accepted %s", c.Raw)
		}
		again, err := parse(subject, header(proto.HeaderSource, source, proto.HeaderAction, action), c.Raw)
		if err != nil || string(again.Raw) != string(c.Raw) || !again.Event.CheckID() {
			t.Fatalf("read again: %v\n%s\n%s", err, c.Raw, again.Raw)
		}
		proto.EventSubjectOf(c.Event)
	})
}
