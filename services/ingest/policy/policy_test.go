package policy_test

import (
	"fmt"
	"log/slog"
	"slices"
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
)

const domain = "git.example.com"

var (
	now = time.Unix(1_800_000_000, 0).UTC()

	alice, bob, carol, dave = person(1), person(2), person(3), person(4)
)

func person(n int) string { return fmt.Sprintf("%064x", n) }

func npub(pubkey string) string {
	s, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		panic(err)
	}
	return s
}

func event(author string, kind int, at int64, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{PubKey: author, Kind: kind, CreatedAt: nostr.Timestamp(at), Tags: tags, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
}

// announce lists us; extra tags come on top.
func announce(author, identifier string, at int64, extra ...nostr.Tag) *nostr.Event {
	return event(author, 30617, at, append([]nostr.Tag{
		{"d", identifier}, {"clone", "https://" + domain + "/" + npub(author) + "/" + identifier + ".git"}, {"relays", "wss://" + domain},
	}, extra...)...)
}

// announceElsewhere does not list us.
func announceElsewhere(author, identifier string, at int64, extra ...nostr.Tag) *nostr.Event {
	return event(author, 30617, at, append([]nostr.Tag{
		{"d", identifier}, {"clone", "https://other.example.org/x.git"}, {"relays", "wss://other.example.org"},
	}, extra...)...)
}

func state(author, identifier string, at int64) *nostr.Event {
	return event(author, 30618, at, nostr.Tag{"d", identifier}, nostr.Tag{"refs/heads/main", strings.Repeat("a", 40)})
}

func tag(values ...string) nostr.Tag { return values }

var (
	atTree   = tag("a", repo(alice, "tree"))
	commit   = tag("c", strings.Repeat("b", 40))
	atBush   = tag("a", repo(alice, "bush"))
	namesBob = tag("maintainers", bob)
)

func repo(owner, identifier string) string { return "30617:" + owner + ":" + identifier }

// world is what is known, as plain lists. It answers by looking through them, so that it shares
// nothing with what it stands for.
type world struct {
	accepted []*nostr.Event
	held     []*held.Entry
	rejected map[string]string
	hidden   map[string]string // names of bans by id
}

func (w *world) accept(evs ...*nostr.Event) *world { w.accepted = append(w.accepted, evs...); return w }

func accepts(evs ...*nostr.Event) *world { return new(world).accept(evs...) }
func holds(evs ...*nostr.Event) *world   { return new(world).hold(evs...) }
func vouches(evs ...*nostr.Event) *world { return new(world).vouch(evs...) }

func silent(ev *nostr.Event) *world {
	return holdsAs(proto.PhaseSilent, now, ev.Tags.GetD(), ev)
}

func holdsAs(phase proto.Phase, expires time.Time, identifier string, ev *nostr.Event) *world {
	return new(world).holdAs(phase, expires, identifier, ev)
}

func (w *world) hold(evs ...*nostr.Event) *world {
	for _, ev := range evs {
		w.holdAs(proto.PhaseWaiting, now.Add(time.Minute), ev.Tags.GetD(), ev)
	}
	return w
}

// vouch holds announcements as maintainers' that list us nowhere.
func (w *world) vouch(evs ...*nostr.Event) *world {
	for _, ev := range evs {
		w.holdAs(proto.PhaseVouched, now, ev.Tags.GetD(), ev)
	}
	return w
}

func (w *world) holdAs(phase proto.Phase, expires time.Time, identifier string, ev *nostr.Event) *world {
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

func (w *world) Announced(identifier string) *held.Directory {
	all := new(world)
	for _, ev := range w.accepted {
		if ev.Kind == 30617 {
			all.holdAs("", time.Time{}, ev.Tags.GetD(), ev)
		}
	}
	return all.Held()
}

func (w *world) Deleted(ev *nostr.Event) bool {
	return w.find(func(request *nostr.Event) bool {
		return request.Kind == 5 && request.PubKey == ev.PubKey && request.Tags.ContainsAny("e", []string{ev.ID})
	}) != nil
}

func (w *world) Vouched(ev *nostr.Event) bool {
	names := []string{ev.ID}
	if a, ok := nostr.AddressOf(ev); ok {
		names = append(names, a.String())
	}
	return w.find(func(other *nostr.Event) bool {
		return policy.Vouches(other.Kind) && slices.ContainsFunc(other.Tags, func(t nostr.Tag) bool { return len(t) > 1 && slices.Contains(names, t[1]) })
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

func (w *world) RejectedBefore(id string) (string, bool) { m, ok := w.rejected[id]; return m, ok }

func settings() config.Settings {
	var s config.Settings
	s.Domain = domain
	s.HoldDuration, s.SilentDuration, s.MaxFutureSeconds = 30*time.Minute, 24*time.Hour, 900
	return s
}

// rulesOf are the rules of some settings, at the time that now says.
func rulesOf(t *testing.T, s config.Settings, bounds policy.Bounds) *policy.Policy {
	t.Helper()
	banned, err := bans.New(s.Policy, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(s, banned, bounds, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func user(ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser}
}

func synced(ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneSyncHistoric, Source: proto.SourceStartup, Relay: "wss://other.example.org"}
}

func action(a proto.Action, ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: a}
}

func release(ev *nostr.Event) *policy.Candidate { return action(proto.ActionRelease, ev) }
func expire(ev *nostr.Event) *policy.Candidate  { return action(proto.ActionExpire, ev) }

// want is what a decision should be. Empty fields of it must be empty in the decision too, but for
// the message, whose beginning it is.
type want struct {
	outcome  proto.Outcome
	message  string
	reason   string
	park     bool
	remember bool
	missing  []string
	hold     []string // "<short id> <phase> <time until it expires>"
	drop     []string // "<short id> <what it is remembered by>"
	removes  bool

	under string   // the identifier of what is held; "": any
	next  []string // ids of what is decided next; nil: any
}

type row struct {
	name      string
	world     *world
	candidate *policy.Candidate
	settings  func(*config.Settings)
	want      want
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := settings()
			if r.settings != nil {
				r.settings(&s)
			}
			p := rulesOf(t, s, policy.Bounds{})
			w := r.world
			if w == nil {
				w = &world{}
			}
			check(t, p.Decide(w, r.candidate), r.want)
		})
	}
}

func check(t *testing.T, d policy.Decision, w want) {
	t.Helper()
	got := want{outcome: d.Outcome, message: d.Message, reason: d.Reason, park: d.Park, remember: d.Remember, removes: d.Removes}
	if w.message != "" && strings.HasPrefix(d.Message, w.message) {
		got.message = w.message
	}
	if w.missing != nil {
		got.missing = d.Missing
	}
	for _, e := range d.Hold {
		got.hold = append(got.hold, fmt.Sprintf("%s %s %s", e.Event.ID[:8], e.Phase, e.ExpiresAt.Sub(now)))
	}
	if w.under != "" {
		got.under = d.Hold[0].Identifier
	}
	for _, c := range d.Next {
		if w.next != nil && c.Action == proto.ActionRelease && len(c.Raw) > 0 {
			got.next = append(got.next, c.Event.ID)
		}
	}
	for _, x := range d.Drop {
		got.drop = append(got.drop, dropped(x.Entry.Event, x.Remember))
	}
	for _, list := range [][]string{got.hold, got.drop, w.hold, w.drop} {
		slices.Sort(list)
	}
	if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", w); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func waiting(ev *nostr.Event) string { return ev.ID[:8] + " waiting 30m0s" }

func dropped(ev *nostr.Event, remember ...string) string {
	return strings.TrimSpace(ev.ID[:8] + " " + strings.Join(remember, ""))
}

func isHeld(evs ...*nostr.Event) want {
	w := want{outcome: proto.HeldBack, message: proto.MessagePurgatory}
	for _, ev := range evs {
		w.hold = append(w.hold, waiting(ev))
	}
	return w
}

func isAccepted(drops ...string) want { return want{outcome: proto.Accepted, drop: drops} }

// and adds what is dropped.
func (w want) and(drops ...string) want { w.drop = drops; return w }

func (w want) before(ev *nostr.Event) want { w.next = []string{ev.ID}; return w }

func (w want) at(identifier string) want { w.under = identifier; return w }

func isDone(hold ...string) want { return want{outcome: proto.Done, hold: hold} }

// isKnown is the answer to what is held already.
func isKnown(hold ...string) want {
	return want{outcome: proto.Duplicate, message: proto.MessagePurgatory, hold: hold}
}

func isForgotten(reason, message string) want {
	return want{outcome: proto.Rejected, reason: reason, message: message}
}

func isDuplicate(drops ...string) want {
	return want{outcome: proto.Duplicate, message: "duplicate: ", drop: drops}
}

func isRejected(reason string, message string) want {
	return want{outcome: proto.Rejected, reason: reason, message: message, remember: true}
}

var (
	orphan    = isRejected("orphan", "invalid: ")
	banned    = isRejected("blacklisted", "blocked: ")
	unlisted  = isRejected("not_whitelisted", "blocked: ")
	invalid   = isRejected("invalid", "invalid: ")
	notListed = isParked("service_not_listed", "invalid: ", "d:tree")
)

func isParked(reason string, message string, missing ...string) want {
	w := isRejected(reason, message)
	w.park, w.missing = true, missing
	return w
}
