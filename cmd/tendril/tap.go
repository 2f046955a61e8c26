package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

// taps is `tendril tap`.
type taps struct {
	Repo   string `placeholder:"TEXT" help:"Only repositories whose npub1…/identifier has this text."`
	Relay  string `placeholder:"TEXT" help:"Only what comes from relays, clients or git servers whose address has this text."`
	Author string `placeholder:"NPUB" help:"Only events of this author, and repositories of this owner."`
	Kind   []int  `placeholder:"KIND" help:"Only events of these kinds."`
	JSON   bool   `name:"json" help:"Print JSON, one object a line."`

	running `embed:""`
}

// step is one thing that happened on the bus.
type step struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"`           // relay, client, git server or service
	Repo   string    `json:"repo,omitempty"` // 30617:<pubkey>:<identifier>, or an identifier
	Author string    `json:"author,omitempty"`
	Event  string    `json:"event,omitempty"` // id
	Kind   int       `json:"kind,omitempty"`
	What   string    `json:"what"` // accepted, held, rejected, fetched and so on
	Text   string    `json:"text,omitempty"`
	Millis int64     `json:"ms,omitempty"`
}

// Run implements the command. Its subscriptions end with it.
func (c *taps) Run() error {
	return c.do("tap", "", 0, func(ctx context.Context, b *bus.Bus) error {
		if _, _, err := find(ctx, b, proto.StreamEvents); err != nil {
			return err
		}
		t := newTap()
		messages := make(chan *nats.Msg, 1<<16)
		for _, subject := range []string{proto.AnyCandidate, proto.VerdictSubject("*"), proto.AnyGit, proto.StoredSubject(proto.KVStream(proto.BucketRelays), proto.KVSubject(proto.BucketRelays, ">"))} {
			if _, err := b.Conn.ChanSubscribe(subject, messages); err != nil {
				return fmt.Errorf("listen to %s: %w", subject, err)
			}
		}
		if err := b.Conn.FlushTimeout(c.Wait); err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case m := <-messages:
				for _, s := range t.hear(m, time.Now()) {
					if err := c.write(os.Stdout, s, colours(os.Stdout)); err != nil {
						return err
					}
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

func newTap() *tap { return &tap{map[string]step{}, map[string]proto.RelayState{}} }

// hear takes a message of the bus.
func (t *tap) hear(m *nats.Msg, now time.Time) (steps []step) {
	if lane, err := proto.ParseLane(m.Subject); err == nil {
		t.offer(lane, m, now)
		return nil
	}
	var v proto.Verdicts
	var n proto.GitNotice
	if _, err := proto.ParseVerdictSubject(m.Subject); err == nil && json.Unmarshal(m.Data, &v) == nil {
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
	if verb, is := proto.ParseGitVerb(m.Subject); is && json.Unmarshal(m.Data, &n) == nil {
		s := step{At: now, From: cmp.Or(n.URL, "purgatory"), Repo: n.Identifier, Event: n.Event, Kind: n.Kind, What: string(verb), Text: n.Reason, Millis: n.Millis}
		if ref, err := parseRepo(n.Owner + "/" + n.Identifier); err == nil {
			s.Repo = ref.String()
		}
		if len(n.Objects) > 0 {
			s.Text = strings.TrimSpace(s.Text + " " + strings.Join(n.Objects, " "))
		}
		return []step{s}
	}
	var r proto.RelayState
	if json.Unmarshal(m.Data, &r) == nil && r.URL != "" {
		before := t.relays[r.URL]
		if t.relays[r.URL] = r; before.Connection == r.Connection && before.Failures == r.Failures {
			return nil
		}
		s := step{At: now, From: r.URL, What: session.Connection(r.Connection).String()}
		if r.Failures > 0 {
			s.Text = fmt.Sprintf("%d failures: %s", r.Failures, r.LastError)
		}
		return []step{s}
	}
	return nil
}

// offer remembers the events of a pack of candidates.
func (t *tap) offer(lane proto.Lane, m *nats.Msg, now time.Time) {
	for line := range bytes.SplitSeq(m.Data, []byte("\n")) {
		var ev nostr.Event
		if len(t.offered) == maxOffered {
			clear(t.offered)
		}
		if ev.UnmarshalJSON(line) != nil {
			continue
		}
		from := cmp.Or(m.Header.Get(proto.HeaderRelay), m.Header.Get(proto.HeaderClient), string(lane))
		t.offered[ev.ID] = step{At: now, From: from, Repo: repoOf(&ev), Author: ev.PubKey}
	}
}

// repoOf is the repository that an event is about, as far as it says so itself.
func repoOf(ev *nostr.Event) string {
	if ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
		return nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}.String()
	}
	for _, tag := range ev.Tags {
		if len(tag) > 1 && slices.Contains([]string{"a", "A", "q"}, tag[0]) && strings.HasPrefix(tag[1], "30617:") {
			return tag[1]
		}
	}
	return ""
}

// wants reports whether a step is asked for.
func (c *taps) wants(s step) bool {
	name := nameRepo(s.Repo)
	author := c.Author == "" || strings.HasPrefix(name, c.Author+"/") || s.Author != "" && (s.Author == c.Author || npubOf(s.Author) == c.Author)
	return author && strings.Contains(name, c.Repo) && strings.Contains(s.From, c.Relay) && (len(c.Kind) == 0 || slices.Contains(c.Kind, s.Kind))
}

// stepColours are how steps look; others are yellow.
var stepColours = map[string]int{
	"accepted": 32, "released": 32, "fetched": 32, "pushed": 32, "returned": 32, "connected": 32, "duplicate": 90,
	"rejected": 31, "failed": 31, "refused": 31, "expired": 31, "disconnected": 31, "removed": 31,
}

// write writes a step if it is asked for: 14:02:07 wss://relay.example → hello (npub1…) issue
// 3f32e9 accepted, 3 ms.
func (c *taps) write(out io.Writer, s step, coloured bool) error {
	switch {
	case !c.wants(s):
		return nil
	case c.JSON:
		return json.NewEncoder(out).Encode(s)
	}
	what := s.What
	if coloured {
		what = fmt.Sprintf("\x1b[%dm%s\x1b[0m", cmp.Or(stepColours[what], 33), what)
	}
	parts := []string{s.At.Local().Format("15:04:05"), printable(s.From), "→"}
	if ref, err := nostr.ParseRepoRef(s.Repo); err == nil {
		parts = append(parts, fmt.Sprintf("%s (%.12s…)", printable(ref.Identifier), npubOf(ref.PubKey)))
	} else if s.Repo != "" {
		parts = append(parts, printable(s.Repo))
	}
	if s.Event != "" {
		parts = append(parts, cmp.Or(kindWords[s.Kind], fmt.Sprintf("kind %d", s.Kind)), fmt.Sprintf("%.6s", s.Event))
	}
	line := strings.Join(append(parts, what), " ")
	if s.Millis > 0 {
		line += fmt.Sprintf(", %d ms", s.Millis)
	}
	if s.Text != "" {
		line += ": " + clip(printable(s.Text))
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// kindWords are the kinds of events in words.
var kindWords = map[int]string{
	nostr.KindAnnouncement: "announcement", nostr.KindState: "state", nostr.KindPatch: "patch", nostr.KindPR: "pull request",
	nostr.KindPRUpdate: "update of a pull request", nostr.KindIssue: "issue", nostr.KindComment: "comment", nostr.KindDeletion: "deletion request",
	nostr.KindUserGraspList: "grasp list", 0: "profile", 1: "note", 7: "reaction", 1630: "status: open", 1631: "status: applied", 1632: "status: closed", 1633: "status: draft",
}
