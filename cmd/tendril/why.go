package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
)

// answersFor is how long replicas have to answer what they have in memory.
const answersFor = time.Second

// whys is `tendril why`.
type whys struct {
	Subject string `arg:"" help:"An event (64 hex digits, note1…, nevent1…), a repository (npub1…/identifier, naddr1…, its http(s) address) or a relay (wss://…)."`
	asks    `embed:""`
}

// here stands for our domain in a remedy, until a process has told it.
const here = "<this server>"

// story is what is known of something, in order of time, and what can be done.
type story struct {
	Subject string      `json:"subject"`
	Lines   []storyLine `json:"lines"`
	Remedy  string      `json:"remedy"`
}

// storyLine is one thing that happened, or will; without a time it is how it stands now.
type storyLine struct {
	At   time.Time `json:"at,omitzero"`
	From string    `json:"from"` // who knows it
	Text string    `json:"text"`
}

// Run implements the command.
func (w *whys) Run(k *kong.Kong) error {
	return w.do("why", "", w.Wait, func(ctx context.Context, b *bus.Bus) error {
		t := &teller{Bus: b, now: time.Now()}
		progress, err := b.Conn.SubscribeSync(proto.SubjectProgress)
		if err == nil {
			err = t.tell(ctx, w.Subject)
		}
		if err != nil {
			return w.unanswered(err)
		}
		t.end()
		var p proto.Progress
		if m, err := progress.NextMsg(tellEvery); err == nil && json.Unmarshal(m.Data, &p) == nil && p.Domain != "" {
			if strings.HasPrefix(p.Domain, "127.") || strings.HasPrefix(p.Domain, "localhost") { // without TLS
				t.Remedy = strings.ReplaceAll(t.Remedy, "https://"+here, "http://"+here)
			}
			t.Remedy = strings.ReplaceAll(t.Remedy, here, p.Domain)
		}
		return w.print(k.Stdout, t.story, t.write)
	})
}

// teller gathers a story from the bus.
type teller struct {
	*bus.Bus
	story
	events  *query.Remote
	now     time.Time
	advised time.Time // when that happened which the remedy is for
}

// say adds a line.
func (t *teller) say(at time.Time, from, format string, args ...any) {
	t.Lines = append(t.Lines, storyLine{at, from, fmt.Sprintf(format, args...)})
}

// advise names what can be done about something that happened; of several the last counts.
func (t *teller) advise(at time.Time, remedy string) {
	if t.Remedy == "" || !at.Before(t.advised) {
		t.Remedy, t.advised = remedy, at
	}
}

// end puts the lines in order: what is so now stands between the past and the future.
func (t *teller) end() {
	at := func(l storyLine) time.Time {
		if l.At.IsZero() {
			return t.now
		}
		return l.At
	}
	slices.SortStableFunc(t.Lines, func(a, b storyLine) int { return at(a).Compare(at(b)) })
}

func (t *teller) write(w io.Writer) error {
	fmt.Fprintln(w, printable(t.Subject))
	err := table(w, "", len(t.Lines), func(i int) []any {
		l := t.Lines[i]
		at := "now"
		if !l.At.IsZero() {
			at = clock(l.At)
		}
		return []any{at, l.From, printable(l.Text)}
	})
	fmt.Fprintf(w, "\n→ %s\n", printable(t.Remedy))
	return err
}

// tell finds out what is asked about.
func (t *teller) tell(ctx context.Context, subject string) error {
	t.Subject = subject
	_, _, err := find(ctx, t.Bus, proto.StreamEvents)
	if err == nil {
		t.events, err = query.NewRemote(ctx, t.Bus, slog.New(slog.DiscardHandler))
	}
	if err != nil {
		return err
	}
	if strings.HasPrefix(subject, "ws://") || strings.HasPrefix(subject, "wss://") {
		return t.relay(ctx, subject)
	}
	if id, is := eventID(subject); is {
		return t.event(ctx, id)
	}
	if u, err := url.Parse(subject); err == nil && u.Host != "" {
		if at, err := nostr.ParseRepositoryPath(strings.TrimSuffix(u.EscapedPath(), "/")); err == nil {
			return t.repository(ctx, nostr.RepoRef{PubKey: at.PubKey, Identifier: at.Identifier})
		}
	}
	ref, err := parseRepo(subject)
	if err != nil {
		return fmt.Errorf("%.200q is no event, repository or relay: want 64 hex digits, note1…, nevent1…, npub1…/identifier, naddr1…, https://…/<npub>/<identifier>.git or wss://…", subject)
	}
	return t.repository(ctx, ref)
}

// eventID reads the id of an event as people write it.
func eventID(name string) (id string, is bool) {
	if nostr.IsHex64(name) {
		return name, true
	}
	_, value, err := nip19.Decode(name)
	switch v := value.(type) {
	case string:
		return v, err == nil && strings.HasPrefix(name, "note1")
	case gonostr.EventPointer:
		return v.ID, err == nil
	}
	return "", false
}

// event tells the story of an event.
func (t *teller) event(ctx context.Context, id string) error {
	accepted, err := t.accepted(ctx, nostr.Filter{IDs: []string{id}})
	if err != nil {
		return err
	}
	for _, ev := range accepted {
		if err := t.logged(ctx, ev); err != nil {
			return err
		}
	}
	err = errors.Join(
		bus.Read(ctx, t.JS, bus.Reading{Stream: proto.StreamEvents, Filters: []string{proto.AnyEventWith(id)}}, func(m bus.Message) {
			if m.Header.Get(proto.HeaderRemoved) == id {
				t.say(m.Time, "log", "removed: nothing that is hosted here needed it any more, or it was purged")
				t.advise(m.Time, "send it again when a repository that it belongs to is hosted here")
			}
		}),
		bus.Read(ctx, t.JS, bus.Reading{Stream: proto.StreamRejected, Filters: []string{proto.AnyRejectedWith(id)}}, t.rejection))
	if err != nil {
		return err
	}
	deletions, err := t.accepted(ctx, nostr.Filter{Kinds: []int{nostr.KindDeletion}, Tags: nostr.TagMap{"e": {id}}})
	if err != nil {
		return err
	}
	for _, ev := range deletions {
		t.say(ev.CreatedAt.Time(), "log", "%s asks for its deletion (event %s)", npubOf(ev.PubKey), ev.ID)
	}
	held := map[string]proto.Held{}
	if err := bucket(ctx, t.Bus, proto.BucketHeld, &held, "*.*.*."+proto.ShortID(id)); err != nil {
		return err
	}
	for _, h := range held {
		if err := t.held(ctx, h); err != nil {
			return err
		}
	}
	if err := t.refused(ctx, proto.Why{Event: id}); err != nil {
		return err
	}
	if len(t.Lines) == 0 {
		t.say(time.Time{}, "all", "never seen: it is not in the log, not held, and was not refused lately")
		t.advise(t.now, "publish it to this relay; the answer OK says why it is not taken. What the front door refuses (signature, rate) stands only in its log: event rejected "+id)
	}
	return nil
}

// accepted asks for accepted events.
func (t *teller) accepted(ctx context.Context, f nostr.Filter) (events []*nostr.Event, err error) {
	for ev, err := range t.events.Query(ctx, f) {
		if err != nil {
			return nil, fmt.Errorf("ask ingest for events: %w", err)
		}
		events = append(events, ev)
	}
	return events, nil
}

// logged tells when an accepted event came into the log, and from where.
func (t *teller) logged(ctx context.Context, ev *nostr.Event) error {
	m, found, err := bus.Last(ctx, t.JS, proto.StreamEvents, proto.EventSubjectOf(ev).String())
	if err != nil || !found {
		return err
	}
	t.say(m.Time, "log", "accepted: kind %d by %s, from %s, sequence %d", ev.Kind, npubOf(ev.PubKey), source(m.Header.Get(proto.HeaderSource), m.Header.Get(proto.HeaderRelay), ""), m.Seq)
	t.advise(m.Time, "nothing: it is accepted, and served unless it is banned (tendril bans)")
	return nil
}

// source says where an event came from.
func source(how, relay, client string) string {
	switch {
	case relay != "":
		return relay + " (" + how + ")"
	case client != "":
		return "the client " + client
	case proto.Source(how) == proto.SourceUser:
		return "a client"
	case proto.Source(how) == proto.SourceRelease:
		return "purgatory: its git data is here"
	}
	return cmp.Or(how, "a client")
}

// rejection tells of a rejected id.
func (t *teller) rejection(m bus.Message) {
	var r proto.RejectedEvent
	if len(m.Data) == 0 || json.Unmarshal(m.Data, &r) != nil {
		return // it was taken back
	}
	missing := ""
	if len(r.Missing) > 0 {
		missing = "; it misses " + strings.Join(r.Missing[:min(len(r.Missing), 5)], ", ")
	}
	t.say(m.Time, "ingest", "rejected: kind %d, from %s: %s%s", r.Kind, source("", r.Relay, ""), r.Reason, missing)
	t.advise(m.Time, remedyFor(r.Reason))
}

// refused asks every replica of ingest what it refused lately.
func (t *teller) refused(ctx context.Context, question proto.Why) error {
	data, err := json.Marshal(question)
	if err != nil {
		return err
	}
	answers, err := t.Conn.SubscribeSync(t.Conn.NewInbox())
	if err != nil {
		return err
	}
	defer answers.Unsubscribe()
	if err := t.Conn.PublishMsg(&nats.Msg{Subject: proto.SubjectWhy, Reply: answers.Subject, Data: data}); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, answersFor)
	defer cancel()
	for {
		m, err := answers.NextMsgWithContext(waiting)
		if err != nil {
			return ctx.Err() // all that answer have done so
		}
		var a proto.WhyAnswer
		if json.Unmarshal(m.Data, &a) != nil {
			continue
		}
		for _, r := range a.Refusals {
			t.say(r.At, "ingest", "refused: event %s, kind %d, from %s: %s", r.Event, r.Kind, source("", r.Relay, r.Client), r.Reason)
			t.advise(r.At, remedyFor(r.Reason))
		}
	}
}

// remedies are what can be done about a reason that has these words.
var remedies = []struct{ words, remedy string }{
	{"must list this service", "the announcement lists another domain: put <this server> into its clone and relays tags, and publish it again"},
	{"no announcement exists", "publish the announcement of the repository (kind 30617) first, then this event again"},
	{"not authorized", "the owner's announcement must list the author among its maintainers; then publish the event again"},
	{"neither names nor is named", "it belongs to nothing that is hosted here: publish what it names (e, a or q tag) first"},
	{"previously expired", "its git data did not come in time: publish the event again and push within its time"},
	{"superseded", "nothing: a newer state of the same author counts"},
	{"deletion", "nothing: its author has deleted it; a new event is needed"},
	{"the event has expired", "nothing: its own expiration is over"},
	{"in the future", "set the clock of the machine that signed it, and sign it again"},
	{"rate-limited:", "try again later, or raise the limit that is named"},
	{"service is full", "free disk, or raise NGIT_LOG_MAX_BYTES"},
	{"blocked:", "an operator refuses it: see tendril bans, and the settings NGIT_REPOSITORY_WHITELIST, …_BLACKLIST and NGIT_EVENT_BLACKLIST"},
}

// remedyFor is what can be done about a reason.
func remedyFor(reason string) string {
	for _, r := range remedies {
		if strings.Contains(reason, r.words) {
			return r.remedy
		}
	}
	return "mend what the reason says, and publish the event again"
}

// held tells of an event that waits for git data.
func (t *teller) held(ctx context.Context, h proto.Held) error {
	ev := h.Event
	t.say(h.HeldAt, "purgatory", "held (%s): kind %d by %s, from %s", h.Phase, ev.Kind, npubOf(ev.PubKey), source(string(h.Source), h.Relay, h.Client))
	t.say(h.ExpiresAt, "purgatory", "the time of this phase is over")
	owners := []string{ev.PubKey}
	if ev.Kind != nostr.KindAnnouncement {
		announced, err := t.announcements(ctx, h.Identifier)
		if err != nil {
			return err
		}
		for _, a := range announced {
			owners = append(owners, a.PubKey)
		}
	}
	slices.Sort(owners)
	owners = slices.Compact(owners)
	for _, owner := range owners[:min(len(owners), 16)] {
		if err := t.waits(ctx, nostr.RepoRef{PubKey: owner, Identifier: h.Identifier}, ev); err != nil {
			return err
		}
	}
	t.advise(h.HeldAt, "publish a state event (kind 30618), and push what it says to https://"+here+nostr.RepositoryURLPath(npubOf(owners[0]), h.Identifier))
	return nil
}

// announcements are those of an identifier, accepted and held.
func (t *teller) announcements(ctx context.Context, identifier string) (all []*nostr.Event, err error) {
	all, err = t.accepted(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Tags: nostr.TagMap{"d": {identifier}}})
	if err != nil {
		return nil, err
	}
	held, err := t.heldOf(ctx, identifier)
	for _, h := range held {
		if h.Event.Kind == nostr.KindAnnouncement {
			all = append(all, h.Event)
		}
	}
	return all, err
}

func (t *teller) heldOf(ctx context.Context, identifier string) (held map[string]proto.Held, err error) {
	token, err := proto.EncodeIdentifier(identifier)
	if err != nil {
		return nil, err
	}
	return held, bucket(ctx, t.Bus, proto.BucketHeld, &held, proto.ShardName(proto.ShardOf(identifier))+"."+token+".*.*")
}

// waits asks purgatory what a repository waits for; ev nil: for any event.
func (t *teller) waits(ctx context.Context, ref nostr.RepoRef, ev *nostr.Event) error {
	s, err := askRepo(ctx, t.Bus, proto.RepoShow, ref)
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	name := nameRepo(ref.String())
	if err != nil {
		t.say(time.Time{}, "purgatory", "%s: %v", name, err)
		return nil
	}
	if ev == nil {
		t.say(time.Time{}, "purgatory", "%s is %s: %d references, %d bytes, %d events name it", name, cmp.Or(string(s.State), "not looked at yet"), s.References, s.Bytes, s.Events)
		if !s.Changed.IsZero() {
			t.say(s.Changed, "purgatory", "a push or a fetch moved its references last")
		}
		if s.State == proto.RepoEnded {
			t.say(s.Since, "purgatory", "%s", whyEnded(s))
			t.say(time.Time{}, "purgatory", "it is removed: %s", removal(s, t.now))
			t.advise(t.now, "its owner must announce it here again; tendril repo restore keeps its data until then")
		}
	}
	if s.Waits == nil {
		return nil
	}
	if len(s.Waits.Missing) > 0 {
		t.say(time.Time{}, "purgatory", "%s misses %s", name, strings.Join(s.Waits.Missing, ", "))
		t.advise(t.now, fmt.Sprintf("push commit %s: git push https://%s%s --all", s.Waits.Missing[0], here, nostr.RepositoryURLPath(npubOf(ref.PubKey), ref.Identifier)))
	}
	for _, a := range s.Waits.Asked {
		t.say(a.At, "purgatory", "%s: %s", a.URL, a.Answer)
	}
	if !s.Waits.Next.IsZero() {
		t.say(s.Waits.Next, "purgatory", "git servers are asked again")
	}
	return nil
}

// repository tells the story of a repository.
func (t *teller) repository(ctx context.Context, ref nostr.RepoRef) error {
	t.Subject = nameRepo(ref.String())
	accepted, err := t.accepted(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Authors: []string{ref.PubKey}, Tags: nostr.TagMap{"d": {ref.Identifier}}})
	if err != nil {
		return err
	}
	for _, ev := range accepted {
		if err := t.logged(ctx, ev); err != nil {
			return err
		}
	}
	held, err := t.heldOf(ctx, ref.Identifier)
	if err != nil {
		return err
	}
	for _, h := range held {
		if h.Event.Kind != nostr.KindAnnouncement || h.Event.PubKey == ref.PubKey {
			t.say(h.HeldAt, "purgatory", "held (%s): event %s, kind %d, from %s", h.Phase, h.Event.ID, h.Event.Kind, source(string(h.Source), h.Relay, h.Client))
			t.say(h.ExpiresAt, "purgatory", "the time of event %s is over", h.Event.ID)
			t.advise(h.HeldAt, "publish a state event (kind 30618) and push what it says")
		}
	}
	if err := t.refused(ctx, proto.Why{Ref: ref.String()}); err != nil {
		return err
	}
	if err := t.wanted(ctx, ref); err != nil {
		return err
	}
	known := len(t.Lines) > 0
	if err := t.waits(ctx, ref, nil); err != nil {
		return err
	}
	if !known {
		t.advise(time.Time{}, "no announcement of it has come here: its owner must publish one (kind 30617) that lists this server in clone and relays")
	}
	return nil
}

// wanted tells which relays are asked for a repository.
func (t *teller) wanted(ctx context.Context, ref nostr.RepoRef) error {
	relays := map[string]proto.Wanted{}
	err := bus.Read(ctx, t.JS, bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyWanted}}, func(m bus.Message) {
		key, of, err := proto.ParseWantedSubject(m.Subject)
		var w proto.Wanted
		if err == nil && of == ref.String() && json.Unmarshal(m.Data, &w) == nil {
			relays[key] = w
		}
	})
	for key, w := range relays {
		t.say(time.Time{}, "discovery", "%s is asked for it (%s)", key, w.Level)
	}
	return err
}

// relay tells the story of a relay.
func (t *teller) relay(ctx context.Context, address string) error {
	u, err := nostr.NormalizeRelayURL(address)
	if err != nil {
		return err
	}
	t.Subject = string(u)
	token, err := proto.EncodeRelay(u.Key())
	if err != nil {
		return err
	}
	repositories := 0
	err = bus.Read(ctx, t.JS, bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyWantedOf(token)}}, func(m bus.Message) {
		if len(m.Data) > 0 {
			repositories++
		}
	})
	if err != nil {
		return err
	}
	subject, err := proto.TargetSubject(u.Key())
	if err != nil {
		return err
	}
	m, found, err := bus.Last(ctx, t.JS, proto.StreamTargets, subject)
	if err != nil {
		return err
	}
	if !found || len(m.Data) == 0 {
		t.say(time.Time{}, "discovery", "it is not synced from: no announcement that is hosted or held here lists it")
		t.advise(t.now, "list it in the relays tag of an announcement, or as NGIT_SYNC_BOOTSTRAP_RELAY_URL")
	} else {
		t.say(m.Time, "discovery", "it is synced from, for %d repositories", repositories)
		t.advise(time.Time{}, "nothing: it is synced from")
	}
	var c claims
	states := map[string]proto.RelayState{}
	err = errors.Join(bucket(ctx, t.Bus, proto.BucketClaims, &c.held, proto.ClaimKey(proto.GroupRelays, token)),
		bucket(ctx, t.Bus, proto.BucketWorkers, &c.workers), bucket(ctx, t.Bus, proto.BucketRelays, &states, token))
	if err != nil {
		return err
	}
	for _, row := range relays(states, c) {
		t.tellRelay(row)
	}
	return nil
}

func (t *teller) tellRelay(r relayRow) {
	dated := func(at time.Time, format string, args ...any) {
		if !at.IsZero() {
			t.say(at, "relayconn", format, args...)
		}
	}
	t.say(time.Time{}, "relayconn", "%s, %s; worker %s; %d repositories and %d root events confirmed, %d subscriptions", r.State, r.Health, orNone(r.Worker), r.Repos, r.Roots, r.Subscriptions)
	dated(r.LastConnected, "connected")
	dated(r.DisconnectedAt, "disconnected")
	dated(r.CompleteUntil, "complete until here")
	dated(r.FailingSince, "fails since")
	if r.Failures > 0 || r.LastError != "" {
		t.say(time.Time{}, "relayconn", "%d failures in a row; the last answer: %s", r.Failures, cmp.Or(r.LastError, "none"))
		t.advise(t.now, "the relay answers: "+cmp.Or(r.LastError, "nothing"))
	}
	if r.NaughtyUntil.After(t.now) {
		dated(r.NaughtyUntil, "left alone until here: the failure is its own (name, TLS or protocol)")
	}
	if r.NextAttempt.After(t.now) && r.Health != health.Healthy.String() {
		dated(r.NextAttempt, "tried again")
	}
}

// npubOf is how people read a public key.
func npubOf(pubkey string) string {
	npub, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		return pubkey
	}
	return npub
}
