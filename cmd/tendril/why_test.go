package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestStory: lines are in order of time, with what is so now between the past and the future, and
// the remedy is that of the newest thing that has one.
func TestStory(t *testing.T) {
	t.Parallel()
	before, after := noon.Add(-time.Hour), noon.Add(time.Hour)
	rejected := func(reason string, at time.Time) bus.Message {
		data, _ := json.Marshal(proto.RejectedEvent{ID: "x", Kind: 1621, Reason: reason, Missing: []string{"d:tree"}, Relay: "wss://r.example"})
		return bus.Message{Data: data, Time: at}
	}
	for name, c := range map[string]struct {
		tell func(*teller)
		want string
	}{
		"in order": {func(t *teller) {
			t.say(after, "c", "", "third")
			t.say(time.Time{}, "b", "", "second")
			t.say(before, "a", "wait", "first\x1b[2J")
		}, "2026-01-02 11:00:00 a first?[2J now b second 2026-01-02 13:00:00 c third → wait"},
		"a rejection, then another": {func(t *teller) {
			t.rejection(rejected("invalid: no announcement exists for this repository", noon.Add(-time.Second)))
			t.rejection(rejected("restricted: author not authorized for this repository", before))
		}, "2026-01-02 11:00:00 ingest refused: event x, kind 1621, from wss://r.example: restricted: author not authorized for this repository; it misses d:tree" +
			" 2026-01-02 11:59:59 ingest refused: event x, kind 1621, from wss://r.example: invalid: no announcement exists for this repository; it misses d:tree" +
			" → publish the announcement of the repository (kind 30617) first, then this event again"},
		"banned by the settings": {func(t *teller) {
			t.ban = &proto.Ban{What: "tree", Reason: "blocked: x"}
			t.banned()
		}, "now operator banned by the settings (tree): blocked: x → take it out of NGIT_REPOSITORY_BLACKLIST or NGIT_EVENT_BLACKLIST"},
		"taken back": {func(t *teller) {
			t.rejection(bus.Message{Time: before})
		}, "→"},
		"a relay that refuses": {func(t *teller) {
			t.connection(relayRow{"r.example", "disconnected", "degraded", "w1", false, proto.RelayState{
				Failures: 2, LastError: "no TLS", LastConnected: before, FailingSince: before.Add(1), NextAttempt: after, NaughtyUntil: after,
			}})
		}, "2026-01-02 11:00:00 relayconn connected 2026-01-02 11:00:00 relayconn fails since" +
			" now relayconn disconnected, degraded; worker w1; 0 repositories and 0 root events confirmed, 0 subscriptions" +
			" now relayconn 2 failures in a row; the last attempt ended so: no TLS" +
			" 2026-01-02 13:00:00 relayconn left alone until here: the failure is its own (name, TLS or protocol) 2026-01-02 13:00:00 relayconn tried again" +
			" → nothing: it is tried again; the last attempt ended so: no TLS"},
	} {
		told := &teller{now: noon}
		c.tell(told)
		told.end()
		var b strings.Builder
		if told.write(&b); strings.Join(strings.Fields(b.String()), " ") != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, b.String(), c.want)
		}
	}
}

// TestWhatAHeldEventAwaits: a person is told what moves an event of each kind on, as a command that
// works.
func TestWhatAHeldEventAwaits(t *testing.T) {
	t.Parallel()
	address := "http://127.0.0.1:7334/" + npub + "/tree.git"
	pull := nostr.Tags{{"a", ref}, {"c", strings.Repeat("c", 40)}}
	for want, ev := range map[string]*nostr.Event{
		"publish a state event (kind 30618), and push":                                                    {Kind: nostr.KindAnnouncement},
		"push the branches and tags that it names: git push " + address + " 'refs/heads/*' 'refs/tags/*'": {Kind: nostr.KindState},
		"push its commit: git push " + address + " " + pull[1][1] + ":refs/nostr/1d":                      {Kind: nostr.KindPR, ID: "1d", Tags: pull},
	} {
		ev.PubKey = owner
		told := &teller{home: "http://127.0.0.1:7334"}
		if got := told.awaits(proto.Held{Event: ev, Identifier: "tree"}); !strings.HasPrefix(got, want) {
			t.Errorf("kind %d: %q, want %q", ev.Kind, got, want)
		}
	}
}

// TestRemedies: of several that fit the first counts, and every reason has one.
func TestRemedies(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"invalid: the announcement must list this service in its clone and relays tags": "lists another domain",
		"blocked: its author has asked for its deletion":                                "a new event is needed",
		"blocked: this author is not welcome here":                                      "tendril bans",
		"invalid: superseded by a state event of the same author that is newer":         "a newer state",
		"invalid: something else":                                                       "what the reason says",
	} {
		if got := remedyFor(reason); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}

// TestTap: messages of the bus become one line a step, and filters leave others out.
func TestTap(t *testing.T) {
	t.Parallel()
	ev := &nostr.Event{ID: strings.Repeat("3f", 32), PubKey: owner, Kind: nostr.KindIssue, Tags: nostr.Tags{{"a", ref}}, Sig: strings.Repeat("0", 128)}
	message := func(subject string, value any) *nats.Msg { return &nats.Msg{Subject: subject, Data: marshal(t, value)} }
	offer := message(proto.LaneSyncLive.Subject(), ev)
	offer.Header = nats.Header{proto.HeaderRelay: {"wss://r.example"}}
	git, _ := proto.GitSubject("tree", proto.GitFailed)
	relayState := func(failures int) *nats.Msg {
		return message("grasp.relay.r.example", proto.RelayState{URL: "wss://r.example", Failures: failures, LastError: "no\x1b[2J"})
	}
	messages := []*nats.Msg{
		offer,
		message(proto.VerdictSubject("x"), proto.Verdicts{Verdicts: []proto.Verdict{{ID: ev.ID, Kind: ev.Kind, Outcome: proto.Accepted}}}),
		message(proto.VerdictSubject("x"), proto.Verdicts{Verdicts: []proto.Verdict{{ID: ev.ID, Kind: 9, Outcome: proto.Rejected, Message: "invalid: why"}}}), // never offered
		message(git, proto.GitNotice{Identifier: "tree", Owner: npub, URL: "https://g.example/x", Reason: "404", Millis: 7}),
		relayState(1), relayState(1), relayState(0),
		message("grasp.other", "x"), {Subject: git, Data: []byte("{")},
	}
	lines := []string{
		"12:00:00 wss://r.example → tree (" + npub[:12] + "…) issue 3f3f3f accepted, 3 ms",
		"12:00:00  → kind 9 3f3f3f rejected: invalid: why",
		"12:00:00 https://g.example/x → tree (" + npub[:12] + "…) failed, 7 ms: 404",
		"12:00:00 wss://r.example → disconnected: 1 failures: no?[2J",
		"12:00:00 wss://r.example → disconnected",
	}
	for name, c := range map[string]struct {
		tapCommand tapCommand
		want       string // numbers of lines
	}{
		"all": {tapCommand{}, "01234"}, "repository": {tapCommand{Repo: "/tree"}, "02"}, "relay": {tapCommand{Relay: "r.example"}, "034"},
		"author": {tapCommand{Author: personKey(owner)}, "02"}, "kind": {tapCommand{Kind: []int{9, 1}}, "1"},
	} {
		heard, now := &tap{map[string]step{}, map[string]proto.RelayState{}}, time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)
		var got strings.Builder
		want := ""
		for _, m := range messages {
			for _, s := range heard.hear(m, now) {
				c.tapCommand.write(&got, s, false)
			}
			now = now.Add(3 * time.Millisecond)
		}
		for _, i := range c.want {
			want += fmt.Sprintln(lines[i-'0'])
		}
		if got.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got.String(), want)
		}
	}
	var coloured strings.Builder
	if (&tapCommand{}).write(&coloured, step{What: "rejected"}, true); !strings.Contains(coloured.String(), "\x1b[31mrejected\x1b[0m") {
		t.Errorf("%q", coloured.String())
	}
}
