package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

// tapCommand is `tendril tap`.
type tapCommand struct {
	Repo     repoText  `placeholder:"TEXT" help:"Only repositories whose npub1…/identifier has this text, or that this names: an owner or a repository in any form."`
	Relay    string    `placeholder:"TEXT" help:"Only what comes from relays, clients or git servers whose address has this text."`
	Author   personKey `placeholder:"NPUB" help:"Only events of this author, and repositories of this owner: npub1…, nprofile1… or 64 hex digits."`
	Kind     []int     `placeholder:"KIND" help:"Only events of these kinds."`
	busFlags `embed:""`
}

// step is one thing that happened on the bus.
type step struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"`             // relay, client, git server or service
	Repo   string    `json:"repo,omitempty"`   // npub/identifier
	Author string    `json:"author,omitempty"` // npub
	Event  string    `json:"event,omitempty"`  // id
	Kind   int       `json:"kind,omitempty"`
	What   string    `json:"what"` // accepted, held, rejected, fetched and so on
	Text   string    `json:"text,omitempty"`
	Millis int64     `json:"ms,omitempty"`
}

// Run implements the command. Its subscriptions end with it.
func (c *tapCommand) Run() error {
	return c.do(0, func(r *reader) error {
		t := &tap{map[string]step{}, map[string]proto.RelayState{}}
		messages := make(chan *nats.Msg, 1<<16)
		relays := proto.StoredSubject(proto.KVStream(proto.BucketRelays), proto.KVSubject(proto.BucketRelays, ">"))
		for _, subject := range []string{proto.AnyCandidate, proto.VerdictSubject("*"), proto.AnyGit, relays} {
			if _, err := r.Conn.ChanSubscribe(subject, messages); err != nil {
				return fmt.Errorf("listen to %s: %w", subject, err)
			}
		}
		coloured := colours(os.Stdout)
		for {
			select {
			case <-r.ctx.Done():
				return nil
			case m := <-messages:
				for _, s := range t.hear(m, time.Now()) {
					c.write(os.Stdout, s, coloured)
				}
			}
		}
	})
}

// tap makes steps of messages. It remembers candidates until their verdicts come.
type tap struct {
	offered map[string]step // by event id
	relays  map[string]proto.RelayState
}

// maxOffered bounds the candidates that are remembered: with more, their verdicts lack where they
// come from.
const maxOffered = 100_000

// hear takes a message of the bus.
func (t *tap) hear(m *nats.Msg, now time.Time) []step {
	if lane, err := proto.ParseLane(m.Subject); err == nil {
		t.offer(lane, m, now)
	} else if verb, is := proto.ParseGitVerb(m.Subject); is {
		var n proto.GitNotice
		if json.Unmarshal(m.Data, &n) == nil {
			text := strings.TrimSpace(n.Reason + " " + strings.Join(n.Objects, " "))
			return []step{{now, cmp.Or(n.URL, "purgatory"), n.Owner + "/" + n.Identifier, "", n.Event, n.Kind, string(verb),
				text, n.Millis}}
		}
	} else if _, err := proto.ParseVerdictSubject(m.Subject); err == nil {
		return t.decided(m.Data, now)
	} else {
		return t.connection(m.Data, now)
	}
	return nil
}

// offer remembers the events of a pack of candidates.
func (t *tap) offer(lane proto.Lane, m *nats.Msg, now time.Time) {
	from := cmp.Or(m.Header.Get(proto.HeaderRelay), m.Header.Get(proto.HeaderClient), string(lane))
	for line := range bytes.SplitSeq(m.Data, []byte("\n")) {
		var ev nostr.Event
		if ev.UnmarshalJSON(line) != nil {
			continue
		}
		if len(t.offered) == maxOffered {
			clear(t.offered)
		}
		t.offered[ev.ID] = step{At: now, From: from, Repo: repoOf(&ev), Author: nostr.Npub(ev.PubKey)}
	}
}

// decided are the verdicts on a pack.
func (t *tap) decided(data []byte, now time.Time) (steps []step) {
	var v proto.Verdicts
	_ = json.Unmarshal(data, &v)
	for _, verdict := range v.Verdicts {
		s, known := t.offered[verdict.ID]
		delete(t.offered, verdict.ID)
		if known {
			s.Millis = now.Sub(s.At).Milliseconds()
		}
		s.At, s.Event, s.Kind, s.What, s.Text = now, verdict.ID, verdict.Kind, string(verdict.Outcome), verdict.Message
		steps = append(steps, s)
	}
	return steps
}

// connection is how the connection to a relay stands, if that has changed.
func (t *tap) connection(data []byte, now time.Time) []step {
	var r proto.RelayState
	if json.Unmarshal(data, &r) != nil || r.URL == "" {
		return nil
	}
	before, s := t.relays[r.URL], step{At: now, From: r.URL, What: session.Connection(r.Connection).String()}
	if t.relays[r.URL] = r; before.Connection == r.Connection && before.Failures == r.Failures {
		return nil
	}
	if r.Failures > 0 {
		s.Text = fmt.Sprintf("%d failures: %s", r.Failures, r.LastError)
	}
	return []step{s}
}

// repoOf is the repository that an event is about, as far as it says so itself.
func repoOf(ev *nostr.Event) string {
	if ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
		return nostr.Npub(ev.PubKey) + "/" + ev.Tags.GetD()
	}
	for _, tag := range ev.Tags {
		if len(tag) > 1 && slices.Contains([]string{"a", "A", "q"}, tag[0]) && strings.HasPrefix(tag[1], "30617:") {
			return nameRepo(tag[1])
		}
	}
	return ""
}

// wants reports whether a step is asked for.
func (c *tapCommand) wants(s step) bool {
	author := s.Author == c.Author.npub() || strings.HasPrefix(s.Repo, c.Author.npub())
	return author && strings.Contains(s.Repo, string(c.Repo)) && strings.Contains(s.From, c.Relay) &&
		(len(c.Kind) == 0 || slices.Contains(c.Kind, s.Kind))
}

// bad are the steps that look bad.
var bad = []string{"rejected", "failed", "refused", "expired", "disconnected", "removed"}

// write writes a step if it is asked for: 14:02:07 wss://relay.example → hello (npub1…) issue
// 3f32e9 accepted, 3 ms.
func (c *tapCommand) write(out io.Writer, s step, coloured bool) {
	if !c.wants(s) {
		return
	}
	if c.JSON {
		json.NewEncoder(out).Encode(s)
		return
	}
	colour := check.Green
	if slices.Contains(bad, s.What) {
		colour = check.Red
	}
	before, after := s.At.Local().Format(time.TimeOnly)+" "+s.From+" → ", ""
	if npub, identifier, is := strings.Cut(s.Repo, "/"); is {
		before += fmt.Sprintf("%s (%.12s…) ", identifier, npub)
	}
	if s.Event != "" {
		before += fmt.Sprintf("%s %.6s ", kindName(s.Kind), s.Event)
	}
	if s.Millis > 0 {
		after = fmt.Sprintf(", %d ms", s.Millis)
	}
	if s.Text != "" {
		after += ": " + clip(s.Text)
	}
	fmt.Fprintln(out, printable(before)+check.Paint(coloured, colour, s.What)+printable(after))
}

// kindName is a kind of events in words.
func kindName(kind int) string {
	return cmp.Or(nostr.KindOf(kind).Name, fmt.Sprintf("kind %d", kind))
}
