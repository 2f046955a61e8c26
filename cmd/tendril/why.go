package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/subject"
	"tendril.dev/proto"
)

// whyCommand is `tendril why`.
type whyCommand struct {
	Subject  whySubject `arg:"" help:"An event (64 hex digits, note1…, nevent1…), a repository (npub1…/identifier, naddr1…, its address https://… or nostr://…) or a relay (wss://…)."`
	busFlags `embed:""`
}

// Run implements the command.
func (w *whyCommand) Run() error {
	return w.do(w.Wait, func(r *reader) error {
		t := &teller{reader: r, now: time.Now()}
		if err := t.tell(w.Subject.Subject); err != nil {
			return err
		}
		t.end()
		return w.print(t.story, t.write)
	})
}

// whySubject is an event, a repository or a relay on the command line.
type whySubject struct{ subject.Subject }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *whySubject) UnmarshalText(text []byte) (err error) {
	if s.Subject, err = subject.Parse(string(text)); err != nil {
		return err
	}
	if s.Kind == subject.Author || s.Kind == subject.Identifier {
		return fmt.Errorf("%s is of many: why tells of one event, repository or relay; `tendril repo list %s` lists "+
			"repositories", s, cmp.Or(s.Identifier, s.String()))
	}
	return nil
}

// story is what is known of something, in order of time, and what can be done.
type story struct {
	Subject string      `json:"subject"`
	Lines   []storyLine `json:"lines"`
	Remedy  string      `json:"remedy"`
}

// storyLine is one thing that happened, or will; without a time it is how it stands now.
type storyLine struct {
	At     time.Time `json:"at,omitzero"`
	From   string    `json:"from"` // who knows it
	Text   string    `json:"text"`
	Remedy string    `json:"remedy,omitempty"`
}

// teller gathers a story from the bus.
type teller struct {
	*reader
	story
	now  time.Time
	home string     // URL of this server
	ban  *proto.Ban // that hides what is asked about; nil: none does
}

// say adds a line, with what can be done about it.
func (t *teller) say(at time.Time, from, remedy, format string, args ...any) {
	t.Lines = append(t.Lines, storyLine{at, from, fmt.Sprintf(format, args...), remedy})
}

// end puts the lines in order: what is so now stands between the past and the future. The last
// remedy counts.
func (t *teller) end() {
	at := func(l storyLine) time.Time {
		if l.At.IsZero() {
			return t.now
		}
		return l.At
	}
	slices.SortStableFunc(t.Lines, func(a, b storyLine) int { return at(a).Compare(at(b)) })
	for _, l := range t.Lines {
		t.Remedy = cmp.Or(l.Remedy, t.Remedy)
	}
}

func (t *teller) write(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", printable(t.Subject))
	table(w, "", t.Lines, func(l storyLine) []any {
		if l.At.IsZero() {
			return []any{"now", l.From, l.Text}
		}
		return []any{l.At, l.From, l.Text}
	})
	fmt.Fprintf(w, "\n→ %s\n", printable(t.Remedy))
}

// tell finds out what is asked about.
func (t *teller) tell(named subject.Subject) error {
	t.Subject = named.String()
	ref, asked := nostr.RepoRef{}, proto.Why{Event: named.Event}
	switch named.Kind {
	case subject.Relay:
		return t.relay(named.Relay)
	case subject.Repository:
		ref, _ = named.Ref()
		asked.Ref = ref.String()
	}
	progress, err := t.Conn.SubscribeSync(proto.SubjectProgress)
	if err != nil {
		return fmt.Errorf("listen to the processes: %w", err)
	}
	t.refused(asked)
	t.home = homeIn(progress)
	if named.Kind == subject.Repository {
		t.repository(ref)
	} else {
		t.event(named.Event)
	}
	t.banned()
	return t.err
}

// banned tells of the ban, last of what is so now: its remedy comes before every other.
func (t *teller) banned() {
	b := t.ban
	if b == nil {
		return
	}
	since, remedy := "since "+clock(b.At), "tendril unban "+b.What
	if b.At.IsZero() {
		since, remedy = "by the settings", "take it out of NGIT_REPOSITORY_BLACKLIST or NGIT_EVENT_BLACKLIST"
	}
	t.say(time.Time{}, "operator", remedy, "banned %s (%s): %s", since, b.What, b.Reason)
}

// homeIn is the URL of this server, as its processes tell it.
func homeIn(progress *nats.Subscription) string {
	p := proto.Progress{Domain: "<this server>"}
	if m, err := progress.NextMsg(tellEvery); err == nil {
		_ = json.Unmarshal(m.Data, &p)
	}
	return config.Service{Domain: p.Domain}.URL("http")
}

// event tells the story of an event.
func (t *teller) event(id string) {
	served, author := t.events(nostr.Filter{IDs: []string{id}}), ""
	for _, ev := range served {
		t.logged(proto.EventSubjectOf(ev), true)
	}
	t.read(proto.StreamEvents, proto.AnyEventWith(id), func(m bus.Message) {
		at, _ := proto.ParseEventSubject(m.Subject)
		author = at.PubKey
		if len(served) == 0 {
			t.logged(at, false)
		}
		if m.Header.Get(proto.HeaderRemoved) == id {
			t.say(m.Time, "log", "send it again when a repository that it belongs to is hosted here",
				"removed: nothing that is hosted here needed it any more, its time was over, or it was purged")
		}
	})
	t.read(proto.StreamRejected, proto.AnyRejectedWith(id), t.rejection)
	for _, h := range bucket[proto.Held](t.reader, proto.BucketHeld, proto.AnyHeldWith(id)) {
		t.held(h)
		author = h.Event.PubKey
		for _, owner := range t.ownersOf(h) {
			t.stands(nostr.RepoRef{PubKey: owner, Identifier: h.Identifier})
		}
	}
	for _, ev := range t.events(nostr.Filter{Kinds: []int{nostr.KindDeletion}, Tags: nostr.TagMap{"e": {id}}}) {
		// The author of an addressable event may be unknown: "".
		if len(served) == 0 && strings.HasPrefix(ev.PubKey, author) {
			t.say(ev.CreatedAt.Time(), "log", "nothing: an event that its author has deleted does not come back",
				"%s asks for its deletion (event %s)", nostr.Npub(ev.PubKey), ev.ID)
		}
	}
	if len(served) == 0 {
		t.vanished(author)
	} else if served[0].Kind == nostr.KindVanish || served[0].Kind == nostr.KindDeletion {
		t.request(served[0])
	}
	switch {
	case len(t.Lines) > 0 || t.ban != nil:
	case t.isAuthor(id):
		t.say(time.Time{}, "all", "tendril repo list "+nostr.Npub(id), "it is no event but the public key of an author")
	default:
		t.say(time.Time{}, "all",
			"publish it to this relay; the answer OK says why it is not taken. What the front door refuses (signature, rate) "+
				"stands only in its log: event rejected "+id,
			"never seen: it is not in the log (a newer version may have taken its place there), not held, and was not refused "+
				"lately")
	}
}

// ownersOf are the owners of the repositories that a held event is for, as far as its author's own
// announcement and those of the people whom that lists lead there, a few of them.
func (t *teller) ownersOf(h proto.Held) (owners []string) {
	if pr, err := nostr.ParsePullRequest(h.Event); err == nil {
		for _, ref := range pr.Repos[:min(len(pr.Repos), mostTold)] {
			if ref.Identifier == h.Identifier {
				owners = append(owners, ref.PubKey)
			}
		}
		return owners
	}
	if h.Event.Kind == nostr.KindState {
		for c := range authority.Coordinates(t.announcements(h.Identifier), h.Event.PubKey) {
			if owners = append(owners, c.Owner); len(owners) == mostTold {
				break
			}
		}
		return owners
	}
	return []string{h.Event.PubKey}
}

// vanished tells that an author has asked to vanish from here, where nothing of the author is served
// that is older than that.
func (t *teller) vanished(author string) {
	if author == "" {
		return
	}
	for _, ev := range t.events(nostr.Filter{Kinds: []int{nostr.KindVanish}, Authors: []string{author}}) {
		if t.decided(ev).Vanishes {
			t.say(ev.CreatedAt.Time(), "log", "nothing: what its author wrote before the request to vanish does not come back; "+
				"later events are welcome",
				"%s asks to vanish (NIP-62, event %s): what the author wrote until then is not served", nostr.Npub(author),
				ev.ID)
		}
	}
}

// request tells what came of a deletion request or a request to vanish.
func (t *teller) request(ev *nostr.Event) {
	decided := t.decided(ev)
	if ev.Kind == nostr.KindVanish {
		means := "it does nothing here: no relay tag names this service or ALL_RELAYS, or requests are not followed here"
		if decided.Vanishes {
			means = "nothing of its author up to its time is served here, and nothing of that time is taken"
		}
		t.say(time.Time{}, "log", "", "%s", means)
	}
	if decided.Until != 0 {
		t.say(time.Unix(decided.Until, 0), "log", "", "it is forgotten: it has changed nothing here, and kept nothing out")
	}
}

// decided is what ingest noted of a request.
func (t *teller) decided(ev *nostr.Event) (r proto.Request) {
	if m, found := t.last(proto.StreamEvents, proto.EventSubjectOf(ev).String()); found {
		_ = json.Unmarshal([]byte(m.Header.Get(proto.HeaderRequest)), &r) // nothing was noted
	}
	return r
}

// repository tells the story of a repository.
func (t *teller) repository(ref nostr.RepoRef) {
	d := nostr.TagMap{"d": {ref.Identifier}}
	served := t.events(nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Authors: []string{ref.PubKey}, Tags: d})
	at := proto.EventSubjectOf(&nostr.Event{Kind: nostr.KindAnnouncement, PubKey: ref.PubKey,
		Tags: nostr.Tags{{"d", ref.Identifier}}})
	t.logged(at, len(served) > 0)
	if len(served) == 0 {
		t.vanished(ref.PubKey)
	}
	for _, kind := range nostr.KindsThat(func(k nostr.Kind) bool { return k.Waits }) {
		author := "*"
		if kind == nostr.KindAnnouncement {
			author = ref.PubKey
		}
		for _, h := range t.heldOf(ref.Identifier, kind, author) {
			t.held(h)
		}
	}
	t.read(proto.StreamTargets, proto.AnyWanted, func(m bus.Message) {
		var w proto.Wanted
		if key, of, err := proto.ParseWantedSubject(m.Subject); err == nil && of == ref.String() &&
			json.Unmarshal(m.Data, &w) == nil {
			t.say(time.Time{}, "discovery", "", "%s is asked for it (%s)", key, w.Level)
		}
	})
	if len(t.Lines) == 0 && t.ban == nil {
		t.say(time.Time{}, "all",
			"its owner must publish an announcement (kind 30617) that lists this server in clone and relays",
			"no announcement of it has come here")
	}
	t.authority(ref)
	t.stands(ref)
}

// mostTold bounds the keys of which it is told why they do not speak for a repository, and the
// repositories of an event.
const mostTold = 10

// authority tells who speaks for a repository, and why others whom it names do not.
func (t *teller) authority(ref nostr.RepoRef) {
	const from = "authority"
	all := t.announcements(ref.Identifier)
	if all.By(ref.PubKey) == nil {
		return
	}
	g := authority.Of(all, ref.PubKey)
	if g.Root == "" {
		t.say(time.Time{}, from, g.NoAuthority.Advice(), "%s", g.NoAuthority)
		return
	}
	var names []string
	for _, key := range g.Confirmed[:min(len(g.Confirmed), mostTold)] {
		names = append(names, nostr.Npub(key))
	}
	if more := len(g.Confirmed) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	t.say(time.Time{}, from, "", "confirmed maintainers: %s", strings.Join(names, ", "))
	for _, key := range g.Looked {
		if len(names) == 2*mostTold || g.Has(key) {
			continue
		}
		names = append(names, "")
		reason, advice := authority.Why(all, ref.PubKey, key)
		t.say(time.Time{}, from, "", "%s; %s", reason, advice)
	}
}

// announcements finds the announcements of an identifier, accepted and held. Each is asked for
// once.
func (t *teller) announcements(identifier string) authority.Announcements {
	return &announcements{t: t, identifier: identifier, read: map[string]*nostr.Announcement{}}
}

type announcements struct {
	t          *teller
	identifier string
	read       map[string]*nostr.Announcement
}

func (all *announcements) By(author string) *nostr.Announcement {
	if a, read := all.read[author]; read {
		return a
	}
	events := all.t.events(nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Authors: []string{author},
		Tags: nostr.TagMap{"d": {all.identifier}}})
	for _, h := range all.t.heldOf(all.identifier, nostr.KindAnnouncement, author) {
		if h.Phase != proto.PhaseSilent {
			events = append(events, h.Event)
		}
	}
	var newest *nostr.Announcement
	for _, ev := range events {
		if a, err := nostr.ParseAnnouncement(ev); err == nil && (newest == nil || nostr.Replaces(ev, newest.Event)) {
			newest = a
		}
	}
	all.read[author] = newest
	return newest
}

// LedBy is not asked for: the story is of one owner's repository.
func (all *announcements) LedBy(string) iter.Seq[*nostr.Announcement] {
	return func(func(*nostr.Announcement) bool) {}
}

// logged tells when an accepted event came into the log, and from where. What is not served is
// banned, deleted or expired.
func (t *teller) logged(at proto.EventSubject, served bool) {
	m, found := t.last(proto.StreamEvents, at.String())
	if !found || len(m.Data) == 0 { // it was removed
		return
	}
	remedy := "nothing: it is accepted and served"
	if !served {
		remedy, t.Remedy = "", "nothing: its time is over" // unless a line says why it is not served
	}
	from := source(m.Header.Get(proto.HeaderSource), m.Header.Get(proto.HeaderRelay), "")
	t.say(m.Time, "log", remedy, "accepted: kind %d by %s, from %s, sequence %d", at.Kind, nostr.Npub(at.PubKey),
		from, m.Seq)
}

// source says where an event came from.
func source(how, relay, client string) string {
	if client != "" {
		return "the client " + client
	}
	return cmp.Or(relay, how)
}

// rejection tells of a rejected id.
func (t *teller) rejection(m bus.Message) {
	var r proto.RejectedEvent
	if json.Unmarshal(m.Data, &r) != nil {
		return // it was taken back
	}
	if n := min(len(r.Missing), 5); n > 0 {
		r.Reason += "; it misses " + strings.Join(r.Missing[:n], ", ")
	}
	t.refusal(proto.Refusal{At: m.Time, Event: r.ID, Kind: r.Kind, Relay: r.Relay, Reason: r.Reason})
}

func (t *teller) refusal(r proto.Refusal) {
	t.say(r.At, "ingest", remedyFor(r.Reason), "refused: event %s, kind %d, from %s: %s", r.Event, r.Kind,
		source("", r.Relay, r.Client), r.Reason)
}

// refused asks every replica of ingest what it refused lately; they answer from memory.
func (t *teller) refused(question proto.Why) {
	data, _ := json.Marshal(question)
	answers, err := t.Conn.SubscribeSync(t.Conn.NewInbox())
	if err == nil {
		err = t.Conn.PublishRequest(proto.SubjectWhy, answers.Subject, data)
	}
	t.err = err
	waiting, cancel := context.WithTimeout(t.ctx, time.Second)
	defer cancel()
	for t.err == nil {
		m, err := answers.NextMsgWithContext(waiting)
		if err != nil {
			return // all that answer have done so
		}
		var a proto.WhyAnswer
		_ = json.Unmarshal(m.Data, &a)
		for _, r := range a.Refusals {
			t.refusal(r)
		}
		t.ban = cmp.Or(a.Ban, t.ban)
	}
}

// remedies are what can be done about a reason that has these words.
var remedies = []struct{ words, remedy string }{
	{"must list this service",
		"the announcement lists another domain: put this server into its clone and relays tags, and publish it again"},
	{"no announcement exists", "publish the announcement of the repository (kind 30617) first, then this event again"},
	{"not authorized", "its author must be a confirmed maintainer: one must list the author, who must publish an " +
		"announcement of this identifier that lists one; tendril why <repository> says who is"},
	{"neither names nor is named",
		"it belongs to nothing that is hosted here: publish what it names (e, a or q tag) first"},
	{"previously expired", "its git data did not come in time: publish the event again and push within its time"},
	{"superseded", "nothing: a newer state of the same author counts"},
	{"to vanish", "nothing: its author has asked to vanish; events of a later time are welcome"},
	{"deletion", "nothing: its author has deleted it; a new event is needed"},
	{"the event has expired", "nothing: its own expiration is over"},
	{"in the future", "set the clock of the machine that signed it, and sign it again"},
	{"rate-limited:", "try again later, or raise the limit that is named"},
	{"service is full", "free disk, or raise NGIT_LOG_MAX_BYTES: /readyz says which of the two is short"},
	{"blocked:", "an operator refuses it: see tendril bans, and the settings NGIT_REPOSITORY_WHITELIST, …_BLACKLIST " +
		"and NGIT_EVENT_BLACKLIST"},
	{"", "mend what the reason says, and publish the event again"},
}

// remedyFor is what can be done about a reason.
func remedyFor(reason string) string {
	i := slices.IndexFunc(remedies, func(r struct{ words, remedy string }) bool {
		return strings.Contains(reason,
			r.words)
	})
	return remedies[i].remedy
}

// held tells of an event that waits for git data.
func (t *teller) held(h proto.Held) {
	ev := h.Event
	t.say(h.HeldAt, "purgatory", t.awaits(h), "held (%s): event %s, kind %d by %s, from %s",
		h.Phase, ev.ID, ev.Kind, nostr.Npub(ev.PubKey), source(string(h.Source), h.Relay, h.Client))
	t.say(h.ExpiresAt, "purgatory", "", "the time of event %s is over", ev.ID)
}

// pushAll pushes every branch and tag. A push of all branches with --all leaves the tags out.
const pushAll = "git push %s 'refs/heads/*' 'refs/tags/*'"

// awaits is what a person can do about a held event.
func (t *teller) awaits(h proto.Held) string {
	address := t.home + nostr.RepositoryURLPath(nostr.Npub(h.Event.PubKey), h.Identifier)
	switch h.Event.Kind {
	case nostr.KindState:
		return "push the branches and tags that it names: " + fmt.Sprintf(pushAll, address)
	case nostr.KindPR, nostr.KindPRUpdate:
		pr, err := nostr.ParsePullRequest(h.Event)
		if err != nil || len(pr.Repos) == 0 {
			return "push its commit to refs/nostr/" + h.Event.ID + " of a repository that it names"
		}
		address = t.home + nostr.RepositoryURLPath(nostr.Npub(pr.Repos[0].PubKey), pr.Repos[0].Identifier)
		return fmt.Sprintf("push its commit: git push %s %s:refs/nostr/%s", address, pr.Commit, h.Event.ID)
	}
	return "publish a state event (kind 30618), and push what it names: " + fmt.Sprintf(pushAll, address)
}

// heldOf is what is held of an identifier, a kind and an author ("*": of any).
func (t *teller) heldOf(identifier string, kind int, author string) map[string]proto.Held {
	keys, err := proto.AnyHeld(identifier, kind, author)
	if err != nil {
		return nil
	}
	return bucket[proto.Held](t.reader, proto.BucketHeld, keys)
}

// stands asks purgatory how a repository stands, and what it waits for.
func (t *teller) stands(ref nostr.RepoRef) {
	const from = "purgatory"
	name, now := nameRepo(ref.String()), time.Time{}
	s, err := t.workers().Show(t.ctx, ref)
	if errors.Is(err, context.DeadlineExceeded) {
		t.err = err
	}
	if err != nil {
		t.say(now, from, "", "%s: %v", name, err)
		return
	}
	t.say(now, from, "", "%s is %s: %d references, %d bytes, %d events name it", name,
		cmp.Or(string(s.State), "not looked at yet"), s.References, s.Bytes, s.Events)
	if !s.Changed.IsZero() {
		t.say(s.Changed, from, "", "a push or a fetch moved the references of %s last", name)
	}
	if s.State == proto.RepoEnded {
		t.say(s.Since, from, "", "%s", whyEnded(s))
		t.say(now, from, "its owner must announce it here again; tendril repo restore keeps its data until then",
			"it is removed: %s", removal(s, t.now))
	}
	if s.Waits == nil {
		return
	}
	switch missing := s.Waits.Missing; {
	case s.Waits.Named == 0:
		t.say(now, from, "", "%s waits: no state event (kind 30618) says yet which commits are missing", name)
	case len(missing) > 0:
		address := t.home + nostr.RepositoryURLPath(nostr.Npub(ref.PubKey), ref.Identifier)
		push := fmt.Sprintf("push commit %s: "+pushAll, missing[0], address)
		t.say(now, from, push, "%s misses %s", name, strings.Join(missing, ", "))
	}
	for _, a := range s.Waits.Asked {
		t.say(a.At, from, "", "%s: %s", a.URL, a.Answer)
	}
	if !s.Waits.Next.IsZero() {
		t.say(s.Waits.Next, from, "", "git servers are asked again")
	}
}

// relay tells the story of a relay.
func (t *teller) relay(u nostr.RelayURL) error {
	target, err := proto.TargetSubject(u.Key())
	if err != nil {
		return err
	}
	token, _ := proto.EncodeRelay(u.Key())
	if m, found := t.last(proto.StreamTargets, target); !found || len(m.Data) == 0 {
		t.say(time.Time{}, "discovery", "list it in the relays tag of an announcement, or as NGIT_SYNC_BOOTSTRAP_RELAY_URL",
			"it is not synced from: no announcement that is hosted or held here lists it")
	} else {
		t.say(m.Time, "discovery", "nothing: it is synced from", "it is synced from")
	}
	if banned, err := bans.OfRelay(string(u)); err == nil {
		t.relayBan(banned)
	}
	t.lists(token)
	for _, key := range []string{token, proto.VisitKey(token)} {
		for _, row := range t.relays(t.holders(), key) {
			t.connection(row)
		}
	}
	return t.err
}

// relayBan tells that a relay is banned, if it is.
func (t *teller) relayBan(relay bans.Subject) {
	var ban proto.Ban
	m, found := t.last(proto.KVStream(proto.BucketBans), proto.KVSubject(proto.BucketBans, relay.Name()))
	if !found || m.Deletes() || json.Unmarshal(m.Data, &ban) != nil {
		return
	}
	t.say(ban.At, "discovery", "tendril unban "+relay.String(), "it is banned by %s and not connected to: %s",
		cmp.Or(ban.By, "a command"), cmp.Or(ban.Reason, "without a reason"))
}

// mostLists is of how many people it is told that their lists lead to a relay.
const mostLists = 20

// lists tells whose relay lists lead to a relay (GRASP-03).
func (t *teller) lists(token string) {
	said := map[string]bool{}
	t.read(proto.StreamTargets, proto.AnyWantedOf(token), func(m bus.Message) {
		var wanted proto.Wanted
		_, ref, err := proto.ParseWantedSubject(m.Subject)
		if err != nil || json.Unmarshal(m.Data, &wanted) != nil || wanted.Level == "" {
			return
		}
		who, what := wanted.Why, "owner or maintainer of a repository: the past of it is read there once a day"
		if person, is := proto.PersonOf(ref); is {
			who, what = person, "participant: "+strings.Join(partsOf(wanted), ", ")
		}
		if line := who + what; who != "" && !said[line] && len(said) < mostLists {
			said[line] = true
			npub := nostr.Npub(who)
			t.say(m.Time, "discovery", "nothing: the relay list of a participant leads there",
				"the relay list of %s leads there, or the lists of who has none (%s)", npub, what)
		}
	})
}

// partsOf says what is wanted of a person.
func partsOf(w proto.Wanted) (parts []string) {
	for _, part := range []struct {
		is   bool
		text string
	}{
		{w.Roots, "answers to what they opened, live"}, {w.Threads, "the past of their threads"},
		{w.Lists, "their relay list and profile"},
	} {
		if part.is {
			parts = append(parts, part.text)
		}
	}
	return parts
}

// connection tells how the connection to a relay stands.
func (t *teller) connection(r relayRow) {
	const from = "relayconn"
	t.say(time.Time{}, from, "", "%s, %s; worker %s; %d repositories and %d root events confirmed, %d subscriptions",
		r.State, r.Health, cmp.Or(r.Worker, none), r.Repos, r.Roots, r.Subscriptions)
	for _, l := range []struct {
		at   time.Time
		text string
	}{
		{r.LastConnected, "connected"},
		{r.DisconnectedAt, "disconnected"},
		{r.CompleteUntil, "complete until here"},
		{r.FailingSince, "fails since"},
		{r.NaughtyUntil, "left alone until here: the failure is its own (name, TLS or protocol)"},
		{r.NextAttempt, "tried again"},
	} {
		if !l.at.IsZero() {
			t.say(l.at, from, "", "%s", l.text)
		}
	}
	if r.Failures > 0 {
		t.say(time.Time{}, from, "nothing: it is tried again; the last attempt ended so: "+r.LastError,
			"%d failures in a row; the last attempt ended so: %s", r.Failures, r.LastError)
	}
}
