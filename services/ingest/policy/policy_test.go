package policy_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/test/fixture"
)

var (
	must = fixture.Must
	now  = time.Unix(1_800_000_000, 0).UTC()

	// keys puts keys in the place of names, names does the reverse.
	keys, names = replacers()
)

func person(n int) string { return fmt.Sprintf("%064x", n) }

func replacers() (*strings.Replacer, []string) {
	pairs, names := []string{"COMMIT", strings.Repeat("b", 40)}, []string{"held  purgatory", "held", "duplicate  duplicate", "duplicate", " waiting 30m0s", ""}
	for i, name := range []string{"alice", "bob", "carol", "dave"} {
		npub, err := nip19.EncodePublicKey(person(i + 1))
		if err != nil {
			panic(err)
		}
		pairs = append(pairs, "@"+name, npub, name+"/", "30617:"+person(i+1)+":", name, person(i+1))
		names = append(names, person(i+1), name)
	}
	return strings.NewReplacer(pairs...), names
}

// kinds are events that are often made: their kinds and first tags.
var kinds = map[string]string{
	"here":      "30617 d=ID clone=https://git.example.com/@AUTHOR/ID.git relays=wss://git.example.com",
	"elsewhere": "30617 d=ID clone=https://other.example.org/x.git relays=wss://other.example.org",
	"state":     "30618 d=ID refs/heads/main=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
}

// script is the events of a test by their names.
type script map[string]*nostr.Event

// event makes an event of its author, kind, time and tags, as "carol 1 100 e=note p=alice,bob -".
// Kind "here" is an announcement that lists us, "elsewhere" one that does not, and "state" a state,
// each of the repository tree, or of that after a colon. In a tag alice is her key, @alice her
// npub, alice/tree the address of her announcement, and the name of an event its id; "content" is
// an event's JSON.
func (s script) event(line string) *nostr.Event {
	f := strings.Fields(line)
	kind, identifier, _ := strings.Cut(f[1], ":")
	words := strings.Fields(strings.NewReplacer("ID", cmp.Or(identifier, "tree"), "AUTHOR", f[0]).Replace(cmp.Or(kinds[kind], kind)))
	number, err := strconv.Atoi(words[0])
	at, failed := strconv.Atoi(f[2])
	if err != nil || failed != nil {
		panic(line)
	}
	ev := &nostr.Event{PubKey: keys.Replace(f[0]), Kind: number, CreatedAt: nostr.Timestamp(at), Sig: strings.Repeat("0", 128)}
	for _, word := range append(words[1:], f[3:]...) {
		name, values, has := strings.Cut(word, "=")
		if name == "content" {
			ev.Content = s[values].String()
			continue
		}
		tag := nostr.Tag{name}
		for _, value := range strings.Split(values, ",") {
			if other := s[value]; other != nil {
				tag = append(tag, other.ID)
			} else if has {
				tag = append(tag, keys.Replace(value))
			}
		}
		ev.Tags = append(ev.Tags, tag)
	}
	ev.ID = ev.GetID()
	return ev
}

func event(line string) *nostr.Event { return script(nil).event(line) }

// run checks decisions. A script names events, "a = alice here 100", and has rows: the name; what
// is known; the candidate; the decision; and how its message begins, where that matters.
func run(t *testing.T, text string) {
	t.Helper()
	t.Parallel()
	s := script{}
	for _, row := range fixture.Rows(text) {
		if name, line, is := strings.Cut(row[0], " = "); is {
			s[name] = s.event(line)
			continue
		}
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			w, flags := s.known(row[1])
			d := rulesOf(t, policy.Bounds{}, flags...).Decide(w, s.candidate(row[2]))
			if got := s.said(d); got != row[3] || !strings.HasPrefix(d.Message, strings.Join(row[4:], "")) {
				t.Errorf("%s, want %s; the message is %q", got, row[3], d.Message)
			}
		})
	}
}

// known reads events, which come after a word that says how they are known, and flags. A duration
// is how long the held ones after it still wait.
func (s script) known(text string) (w *world, flags []string) {
	w = &world{}
	how, wait := "", time.Duration(0)
	for _, word := range strings.Fields(text) {
		ev := s[word]
		if left, err := time.ParseDuration(word); err == nil {
			wait = left
		} else if strings.HasPrefix(word, "--") {
			flags = append(flags, keys.Replace(word))
		} else if ev == nil {
			how, wait = word, map[string]time.Duration{"waiting": time.Minute}[word]
		} else if how == "accepted" {
			w.accepted = append(w.accepted, ev)
		} else if how == "refused" {
			w.rejected = map[string]string{ev.ID: "previously expired"}
		} else if how == "hidden" {
			w.hidden = map[string]string{ev.ID: "event." + ev.ID}
		} else {
			w.hold(proto.Phase(how), now.Add(wait), ev)
		}
	}
	return w, flags
}

// candidate reads how an event comes, its name, and the reason of an action.
func (s script) candidate(text string) *policy.Candidate {
	how, rest, _ := strings.Cut(text, " ")
	name, reason, _ := strings.Cut(rest, " ")
	switch ev := s[name]; how {
	case "user":
		return user(ev)
	case "synced":
		return synced(ev)
	case "imported":
		return &policy.Candidate{Event: ev, Lane: proto.LaneImport, Source: proto.SourceImport}
	default:
		return &policy.Candidate{Event: ev, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.Action(how), Reason: reason}
	}
}

// said is a decision in words: the outcome, its reason, the prefix of the message, what is held,
// until when unless that is as usual, what is dropped, and what that is remembered by. Only what is
// rejected is remembered, unless the words say otherwise.
func (s script) said(d policy.Decision) string {
	prefix, _, _ := strings.Cut(d.Message, ":")
	says := fmt.Sprint(d.Outcome, " ", d.Reason, " ", prefix)
	for word, is := range map[string]bool{" forgotten": d.Remember != (d.Outcome == proto.Rejected), " removed": d.Removes, " parked": d.Park} {
		if is {
			says += word
		}
	}
	if d.Request.Until == now.Add(30*24*time.Hour).Unix() {
		says += " until 30d"
	}
	if d.Request.Vanishes {
		says += " vanishes"
	}
	var hold, drop, next []string
	for _, e := range d.Hold {
		hold = append(hold, fmt.Sprint(e.Event.ID, " ", e.Phase, " ", e.ExpiresAt.Sub(now), " "))
		if e.Event.Tags.GetD() == "" {
			hold[len(hold)-1] += "at " + e.Identifier
		}
	}
	for _, x := range d.Drop {
		drop = append(drop, x.Entry.Event.ID+" "+x.Remember)
	}
	for _, c := range d.Next {
		if c.Action == proto.ActionRelease && len(c.Raw) > 0 {
			next = append(next, c.Event.ID)
		}
		if c.Renews && len(c.Raw) > 0 {
			next = append(next, c.Event.ID+" renewed")
		}
	}
	for i, list := range [][]string{hold, d.Missing, drop, next} {
		if len(list) > 0 {
			says += " " + []string{"", "misses ", "drops ", "next "}[i] + strings.Join(s.named(list), ", ")
		}
	}
	return strings.Join(strings.Fields(s.named([]string{says})[0]), " ")
}

// named puts names in the place of ids and keys, and sorts.
func (s script) named(list []string) (found []string) {
	pairs := slices.Clone(names)
	for name, ev := range s {
		pairs = append(pairs, ev.ID, name)
	}
	back := strings.NewReplacer(pairs...)
	for _, item := range list {
		found = append(found, strings.TrimSpace(back.Replace(item)))
	}
	slices.Sort(found)
	return found
}

// world is what is known, as plain lists. It answers by looking through them, so that it shares
// nothing with what it stands for.
type world struct {
	accepted []*nostr.Event
	held     []*held.Entry
	rejected map[string]string
	hidden   map[string]string // names of bans by id
}

func accepts(evs ...*nostr.Event) *world { return &world{accepted: evs} }

// hold holds an event under its identifier, or under that of the repository that it tags.
func (w *world) hold(phase proto.Phase, expires time.Time, ev *nostr.Event) *world {
	identifier := ev.Tags.GetD()
	if tag := ev.Tags.Find("a"); identifier == "" && tag != nil {
		identifier = tag[1][strings.LastIndexByte(tag[1], ':')+1:]
	}
	e, err := held.NewEntry(proto.Held{Event: ev, Identifier: identifier, Source: proto.SourceUser, Phase: phase, HeldAt: now.Add(-time.Hour), ExpiresAt: expires})
	if err != nil {
		panic(err)
	}
	w.held = append(w.held, e)
	return w
}

// find returns the first accepted event for which is holds, or nil.
func (w *world) find(is func(*nostr.Event) bool) *nostr.Event {
	if i := slices.IndexFunc(w.accepted, is); i >= 0 {
		return w.accepted[i]
	}
	return nil
}

func isAt(ev *nostr.Event, a nostr.Address) bool {
	at, ok := nostr.AddressOf(ev)
	return ok && at == a
}

func (w *world) Accepted(id string) *nostr.Event {
	return w.find(func(ev *nostr.Event) bool { return ev.ID == id })
}

func (w *world) AcceptedKind(id string) (kind int, accepted bool) {
	if ev := w.Accepted(id); ev != nil {
		return ev.Kind, true
	}
	return 0, false
}

func (w *world) AcceptedAt(a nostr.Address) *nostr.Event {
	return w.find(func(ev *nostr.Event) bool { return isAt(ev, a) })
}

func (w *world) Superseded(ev *nostr.Event) bool {
	address, ok := nostr.AddressOf(ev)
	return ok && slices.ContainsFunc(w.accepted, func(other *nostr.Event) bool {
		return isAt(other, address) && !nostr.Replaces(ev, other)
	})
}

func (w *world) Announced(identifier string) held.Source {
	all := new(world)
	for _, ev := range w.accepted {
		if ev.Kind == 30617 {
			all.hold("", time.Time{}, ev)
		}
	}
	return all.Held().Announced(identifier)
}

// reaches reports whether a request takes an event away.
func reaches(request, ev *nostr.Event) bool {
	switch {
	case request.PubKey != ev.PubKey || ev.Kind == 62:
		return false
	case request.Kind == 62:
		return ev.CreatedAt <= request.CreatedAt && nostr.VanishesFrom(request, "git.example.com")
	}
	address, has := nostr.AddressOf(ev)
	return request.Kind == 5 && ev.Kind != 5 && (request.Tags.ContainsAny("e", []string{ev.ID}) ||
		has && ev.CreatedAt <= request.CreatedAt && request.Tags.ContainsAny("a", []string{address.String()}))
}

func (w *world) Deleted(ev *nostr.Event) bool {
	return w.find(func(request *nostr.Event) bool { return reaches(request, ev) }) != nil
}

func (w *world) Vanished(ev *nostr.Event) bool {
	return w.find(func(request *nostr.Event) bool { return request.Kind == 62 && reaches(request, ev) }) != nil
}

// IdleRequest finds one that reaches nothing that was accepted.
func (w *world) IdleRequest(ev *nostr.Event) *nostr.Event {
	return w.find(func(request *nostr.Event) bool { return reaches(request, ev) && !w.Reaches(request) })
}

func (w *world) Reaches(request *nostr.Event) bool {
	return w.find(func(ev *nostr.Event) bool { return reaches(request, ev) }) != nil
}

func (w *world) AnnouncedBy(author string, until nostr.Timestamp) (events []*nostr.Event) {
	for _, ev := range w.accepted {
		if ev.Kind == 30617 && ev.PubKey == author && ev.CreatedAt <= until {
			events = append(events, ev)
		}
	}
	return events
}

func (w *world) Outlived(*nostr.Event) bool { return false }

func (w *world) Vouched(ev *nostr.Event) bool {
	names := []string{ev.ID}
	if a, ok := nostr.AddressOf(ev); ok {
		names = append(names, a.String())
	}
	return w.find(func(other *nostr.Event) bool {
		return nostr.KindOf(other.Kind).Vouches && slices.ContainsFunc(other.Tags, func(t nostr.Tag) bool { return len(t) > 1 && slices.Contains(names, t[1]) })
	}) != nil
}

func (w *world) Held() *held.Directory {
	d := held.NewDirectory()
	for _, e := range w.held {
		d.Add(e)
	}
	return d
}

func (w *world) Room() *policy.Room { return policy.NewRoom(w.held...) }

func (w *world) HiddenBy(id string) string { return w.hidden[id] }

func (w *world) Wrote(pubkey string) bool {
	return w.find(func(ev *nostr.Event) bool { return ev.PubKey == pubkey }) != nil
}

func (w *world) TakesPart(pubkey string) bool {
	return w.find(func(ev *nostr.Event) bool { return ev.PubKey == pubkey && slices.Contains(policy.PartKinds, ev.Kind) }) != nil
}

func (w *world) RejectedBefore(id string) (string, bool) { m, ok := w.rejected[id]; return m, ok }

// rulesOf are the rules of some settings, at the time that now says.
func rulesOf(t *testing.T, bounds policy.Bounds, flags ...string) *policy.Policy {
	t.Helper()
	s, err := config.Process().Parse(append([]string{"--domain=git.example.com"}, flags...))
	banned, failed := bans.New(s.Policy, slog.New(slog.DiscardHandler))
	must(t, err, failed)
	p, err := policy.New(s, banned, bounds, func() time.Time { return now })
	must(t, err)
	return p
}

func user(ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser}
}

func synced(ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneSyncHistoric, Source: proto.SourceStartup, Relay: "wss://other.example.org"}
}
