package release_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

var must = fixture.Must

const domain = "grasp.example.com"

var (
	alice = key(1)
	bob   = key(2)
	carol = key(3)
)

// key is a public key: npubs are made of any 64 digits.
func key(n int) string { return fmt.Sprintf("%064x", n) }

// world is the repositories of identifier x, and an ingest that is played: what waits and what it
// has accepted.
type world struct {
	testing.TB
	store *repository.Store
	r     *release.Releaser
	work  *gittest.Work

	mu       sync.Mutex
	held     []*nostr.Event
	accepted []*nostr.Event
	follows  []*nostr.Event // accepted pull requests whose commits are still to be named
	refuse   string         // id
	lose     string         // id of which the first verdict was lost, so that the second says duplicate
	away     bool

	stateDeleted bool         // the state that references follow, by its author
	followed     *nostr.Event // that state, if it is noted

	pullsBy map[string][]string // author → ids of more accepted pull requests
	poor    string              // the author for whom nothing may be copied
	paid    int64
	asked   []string // what was asked of ingest
	at      nostr.Timestamp
}

func newWorld(t *testing.T) *world {
	t.Parallel()
	w := &world{TB: t, store: gittest.Store(t), work: gittest.NewWork(t), at: 1000}
	w.r = &release.Releaser{Store: w.store, Offerer: w, Events: w, Log: slog.New(slog.DiscardHandler)}
	return w
}

// CatchUp, Paid, Hosts, Accepted, Held and Unknown implement release.Events.
func (w *world) CatchUp(context.Context) error { return nil }

func (w *world) Paid(_ context.Context, into *repository.Locked, author string, _ bool, copy func(int64) error) error {
	if author == w.poor {
		return nil
	}
	before, err := into.Bytes()
	must(w, errors.Join(err, copy(1<<30)))
	after, err := into.Bytes()
	w.paid += after - before
	return err
}

func (w *world) Hosts(context.Context, nostr.RepoRef) (bool, error) { return true, nil }

func (w *world) Accepted(_ context.Context, id string) (*nostr.Event, error) {
	return w.find(&w.accepted, id), nil
}

func (w *world) Repos(_ context.Context, pr *nostr.PullRequest) ([]nostr.RepoRef, error) {
	return pr.Repos, nil
}

func (w *world) Held(id string) *nostr.Event { return w.find(&w.held, id) }

func (w *world) Unknown(_ context.Context, ids []string) ([]string, error) {
	more := slices.Concat(slices.Collect(maps.Values(w.pullsBy))...)
	return slices.DeleteFunc(ids, func(id string) bool {
		return w.find(&w.accepted, id) != nil || w.Held(id) != nil || slices.Contains(more, id)
	}), nil
}

func (w *world) find(list *[]*nostr.Event, id string) *nostr.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(*list, func(ev *nostr.Event) bool { return ev.ID == id }); i >= 0 {
		return (*list)[i]
	}
	return nil
}

// Offer decides as ingest does, as far as matters here.
func (w *world) Offer(_ context.Context, c candidates.Candidate) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		go c.Done(proto.Verdict{}, candidates.ErrNoVerdict)
		return nil
	}
	w.asked = append(w.asked, string(c.Action)+" "+c.Event.Content)
	v := proto.Verdict{ID: c.Event.ID, Kind: c.Event.Kind, Outcome: proto.Done}
	if c.Action == proto.ActionRelease {
		switch {
		case w.refuse == c.Event.ID:
			v.Outcome = proto.Rejected
		case w.lose == c.Event.ID:
			v.Outcome = proto.Duplicate
			w.accepted = append(w.accepted, c.Event)
		default:
			v.Outcome, v.Seq = proto.Accepted, uint64(len(w.accepted)+1)
			w.accepted = append(w.accepted, c.Event)
		}
	}
	w.held = slices.DeleteFunc(w.held, func(ev *nostr.Event) bool { return ev.ID == c.Event.ID })
	go c.Done(v, nil)
	return nil
}

func (w *world) asks() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.asked
	w.asked = nil
	return asked
}

func (w *world) view() repostate.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	var entries []proto.Held
	for _, ev := range w.held {
		entries = append(entries, proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting})
	}
	var accepted []*nostr.Event
	for _, ev := range w.accepted {
		if ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
			accepted = append(accepted, ev)
		}
	}
	return repostate.New("x", config.Rules{Home: domain}, append(accepted, w.follows...), entries)
}

// release releases what is complete in the repositories of some owners, of all if none is given.
func (w *world) release(owners ...string) release.Result {
	w.Helper()
	result, err := w.tryRelease(owners...)
	must(w, err)
	return result
}

func (w *world) tryRelease(owners ...string) (release.Result, error) {
	view := w.view()
	if len(owners) == 0 {
		owners = view.Hosted
	}
	var scope []*repository.Locked
	for _, owner := range owners {
		repo, err := w.repo(owner).Lock(w.Context())
		must(w, err)
		defer repo.Done()
		scope = append(scope, repo)
	}
	return w.r.Release(w.Context(), view, scope, release.Look{Whole: func(repository.Place) bool { return true }})
}

// event makes a held event; its name is its content.
func (w *world) event(name string, kind int, pubkey string, tags ...nostr.Tag) *nostr.Event {
	w.at++
	ev := &nostr.Event{Kind: kind, PubKey: pubkey, CreatedAt: w.at, Tags: tags, Content: name}
	ev.ID = ev.GetID()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, ev)
	return ev
}

func (w *world) PullsBy(_ context.Context, author string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, id := range w.pullsBy[author] {
			if !yield(id, nil) {
				return
			}
		}
	}
}

func (w *world) StateDeleted(context.Context, repository.Place, []string) (bool, error) {
	return w.stateDeleted, nil
}

func (w *world) Followed(context.Context, repository.Place) (*nostr.Event, error) {
	return w.followed, nil
}

// announce takes keys of maintainers, or roles as "M <key>".
func (w *world) announce(name, owner string, maintainers ...string) *nostr.Event {
	tags := nostr.Tags{{"d", "x"}, {"clone", "https://" + domain + "/x.git"}, {"relays", "wss://" + domain}}
	for _, listed := range maintainers {
		if letter, key, role := strings.Cut(listed, " "); role {
			tags = append(tags, nostr.Tag{letter, key})
		} else {
			tags = append(tags, nostr.Tag{"maintainers", listed})
		}
	}
	return w.event(name, nostr.KindAnnouncement, owner, tags...)
}

func (w *world) state(name, author string, refs ...string) *nostr.Event {
	tags := nostr.Tags{{"d", "x"}, {"HEAD", "ref: refs/heads/main"}}
	for i := 0; i < len(refs); i += 2 {
		tags = append(tags, nostr.Tag{refs[i], refs[i+1]})
	}
	return w.event(name, nostr.KindState, author, tags...)
}

func (w *world) pull(name, author, commit string, owners ...string) *nostr.Event {
	tags := nostr.Tags{{"c", commit}}
	for _, o := range owners {
		tags = append(tags, nostr.Tag{"a", "30617:" + o + ":x"})
	}
	return w.event(name, nostr.KindPR, author, tags...)
}

func (w *world) accept(ev *nostr.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = slices.DeleteFunc(w.held, func(h *nostr.Event) bool { return h.ID == ev.ID })
	w.accepted = append(w.accepted, ev)
}

func (w *world) repo(owner string) *repository.Repo {
	w.Helper()
	repo, err := w.store.Repo(nostr.RepoRef{PubKey: owner, Identifier: "x"})
	must(w, err)
	return repo
}

// give brings everything that revisions reach into an owner's repository, as a fetch or a push
// does.
func (w *world) give(owner string, revisions ...string) {
	w.Helper()
	repo := w.repo(owner)
	gittest.Do(w, repo, func(repo *repository.Locked) error { return repo.Ensure(w.Context()) })
	gittest.Fill(w, repo, w.work.Pack(revisions...))
	for _, revision := range revisions {
		if !strings.HasPrefix(revision, "^") {
			commit := gittest.Git(w, w.work.Dir, "rev-parse", revision+"^{commit}")
			for _, author := range []string{alice, bob, carol} {
				w.r.Brought(repo.Place, author, []string{commit})
			}
		}
	}
}

func (w *world) refs(owner string) map[string]string {
	w.Helper()
	refs, err := w.repo(owner).Refs()
	must(w, err)
	return refs.ByName
}

func (w *world) wantRefs(owner string, pairs ...string) {
	w.Helper()
	want := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		want[pairs[i]] = pairs[i+1]
	}
	if got := w.refs(owner); !maps.Equal(got, want) {
		w.Errorf("the references of %.4s… are %v, want %v", owner[60:], got, want)
	}
}

func (w *world) wantAsked(want ...string) {
	w.Helper()
	if got := w.asks(); !slices.Equal(got, want) {
		w.Errorf("asked ingest for %q, want %q", got, want)
	}
}

const mainBranch, devBranch, nostrPrefix = "refs/heads/main", "refs/heads/dev", "refs/nostr/"

// TestAStateOfNothingWaitsForItsAnnouncement: a state that names no objects is complete at once,
// but it is served no sooner than the announcement.
func TestAStateOfNothingWaitsForItsAnnouncement(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	announcement := w.announce("announcement", alice)
	w.state("empty", alice)
	w.release()
	w.wantAsked()
	w.give(alice, "main") // data that no event names, as of a placeholder
	w.release()
	w.wantAsked()
	pr := w.pull("pull", carol, c1, alice)
	w.release()
	w.wantAsked("release announcement", "release empty", "release pull")
	w.wantRefs(alice, nostrPrefix+pr.ID, c1)

	w.state("full", alice, mainBranch, c1)
	w.release()
	w.wantAsked("release full")
	w.state("emptied", alice)
	w.release()
	w.wantAsked("release emptied")
	w.wantRefs(alice, nostrPrefix+pr.ID, c1)
	if w.find(&w.accepted, announcement.ID) == nil {
		t.Error("the announcement is not accepted")
	}
}

// TestACommitThatOnlyLiesThereIsNoData: a commit that no reference reaches, and that no push or
// fetch has brought for the pull request, is not named, in no repository. One that a reference
// reaches is.
func TestACommitThatOnlyLiesThereIsNoData(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	secret := w.work.Commit("a", "secret")
	for _, owner := range []string{alice, bob} {
		w.accept(w.announce("announcement", owner))
		w.give(owner, secret)
	}
	w.r.Forget(func(repository.Place) bool { return true }) // as after the worker's start
	w.accept(w.state("state", alice, mainBranch, c1))
	pull, old := w.pull("pull", carol, secret, alice, bob), w.pull("old", carol, c1, alice)
	w.release()
	w.wantAsked("release old")
	w.wantRefs(alice, mainBranch, c1, nostrPrefix+old.ID, c1)
	w.r.Brought(w.repo(bob).Place, bob, []string{secret}) // for another's pull request
	w.release()
	w.wantAsked()
	w.r.Brought(w.repo(bob).Place, carol, []string{secret})
	w.release()
	w.wantAsked("release pull")
	w.wantRefs(alice, mainBranch, c1, nostrPrefix+old.ID, c1, nostrPrefix+pull.ID, secret)
}

// TestAnAuthorWithTooManyPullRequestsNamesNoMore: others and the owner do, and the author has room
// again when one of them is gone. An accepted one that finds no room is not owed.
func TestAnAuthorWithTooManyPullRequestsNamesNoMore(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("announcement", alice))
	w.accept(w.state("state", alice, mainBranch, c1))
	w.give(alice, c1)
	w.pullsBy = map[string][]string{}
	at := w.repo(alice)
	must(t, os.MkdirAll(filepath.Join(at.Path, "refs/nostr"), 0o755))
	var first string
	for n := range 256 {
		for _, author := range []string{alice, carol} {
			id := fmt.Sprintf("%064x", sha256.Sum256([]byte(fmt.Sprint(author, n))))
			first = filepath.Join(at.Path, "refs/nostr", id)
			must(t, os.WriteFile(first, []byte(c1+"\n"), 0o644))
			w.pullsBy[author] = append(w.pullsBy[author], id)
		}
	}
	many := w.pull("too many", carol, c1, alice)
	accepted := w.pull("accepted", carol, c1, alice)
	w.accept(accepted)
	w.follows = append(w.follows, accepted)
	other, own := w.pull("other", bob, c1, alice), w.pull("own", alice, c1, alice)
	if result := w.release(); len(result.Owed) > 0 {
		t.Error("one that finds no room is looked for again and again")
	}
	for ev, want := range map[*nostr.Event]string{many: "", accepted: "", other: c1, own: c1} {
		if refs, err := at.Refs(); err != nil || refs.ByName[nostrPrefix+ev.ID] != want {
			t.Errorf("%s: named %q, want %q (%v)", ev.Content, refs.ByName[nostrPrefix+ev.ID], want, err)
		}
	}
	must(t, os.Remove(first))
	w.release()
	refs, err := at.Refs()
	must(t, err)
	if (refs.ByName[nostrPrefix+many.ID] == "") == (refs.ByName[nostrPrefix+accepted.ID] == "") {
		t.Error("one more has room, and no other")
	}
}

// TestAStrangersRepositoryDelaysNoPullRequest: who announces the identifier and lists its owner is
// not waited for, and what is copied there does not count for the author.
func TestAStrangersRepositoryDelaysNoPullRequest(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("announcement", alice, bob))
	w.accept(w.announce("stranger's", bob, alice))
	w.give(alice, c1)
	pull := w.pull("pull", carol, c1, alice)
	w.poor = carol // nothing may be copied for her
	w.release(alice)
	w.wantAsked("release pull")
	w.mu.Lock()
	w.follows = append(w.follows, pull)
	w.mu.Unlock()
	w.release()
	w.wantRefs(bob, nostrPrefix+pull.ID, c1)
}

// TestTheNewestCompleteStateCounts: newer ones wait for their objects, older ones are superseded, a
// stranger's is nothing. References are exactly those of the state that counts, HEAD too.
func TestTheNewestCompleteStateCounts(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	c2 := w.work.Commit("a", "2")
	c3 := w.work.Commit("a", "3")
	w.announce("announcement", alice, bob)
	w.accept(w.event("bob's elsewhere", nostr.KindAnnouncement, bob, nostr.Tag{"d", "x"}, nostr.Tag{"maintainers", alice}))
	pull := w.pull("pull", carol, c2, alice)
	w.state("old", alice, mainBranch, c1)
	w.state("middle", bob, devBranch, c1, mainBranch, c2)
	w.state("young", alice, mainBranch, c3)
	w.state("stranger", carol, mainBranch, c1)
	w.give(alice, c2)
	gittest.Do(t, w.repo(alice), func(repo *repository.Locked) error { return repo.SetRef(t.Context(), "refs/heads/stale", c1) })
	w.release()
	w.wantAsked("release announcement", "release middle", "release old", "release pull")
	w.wantRefs(alice, devBranch, c1, mainBranch, c2, nostrPrefix+pull.ID, c2)
	if head, err := w.repo(alice).Head(); err != nil || head != mainBranch {
		t.Errorf("HEAD is %q (%v)", head, err)
	}
	w.give(alice, c3, "^"+c2)
	w.release()
	w.wantAsked("release young")
	w.wantRefs(alice, mainBranch, c3, nostrPrefix+pull.ID, c2)
}

// TestSiblingsFollow: the state of an author who speaks for several repositories is applied in all
// of them, its parts that came to one are copied to the others, and the held announcements of those
// are released; a repository of other people is left alone, and gets of them no more than the
// commit of a pull request for both.
func TestSiblingsFollow(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.work.Git("checkout", "--quiet", "--orphan", "dev")
	c2 := w.work.Commit("b", "2")
	w.announce("alice", alice, "M "+alice, "m "+bob)
	w.announce("bob", bob, "M "+alice)
	w.announce("carol", carol)
	w.state("state", bob, mainBranch, c1, devBranch, c2)
	w.give(bob, "main")
	w.give(alice, "dev")
	w.release()
	w.wantAsked("release alice", "release bob", "release state")
	w.wantRefs(alice, mainBranch, c1, devBranch, c2)
	w.wantRefs(bob, mainBranch, c1, devBranch, c2)
	w.wantRefs(carol)
	if has, err := w.repo(carol).HasObjects(); has || err != nil {
		t.Errorf("a stranger's repository got the data (%v)", err)
	}
	w.poor = carol
	w.pull("unpaid", carol, c1, bob, carol)
	w.release()
	if absent, err := w.repo(carol).Missing(t.Context(), []string{c1}); err != nil || len(absent) == 0 {
		t.Errorf("a commit is copied for an author who may store nothing more (%v)", err)
	}
	w.poor = ""
	w.pull("pull", carol, c1, bob, carol)
	w.release()
	if size, err := w.repo(carol).Bytes(); err != nil || size == 0 || w.paid != size {
		t.Errorf("a copy of %d bytes counts as %d (%v)", size, w.paid, err)
	}
	if absent, err := w.repo(carol).Missing(t.Context(), []string{c1, c2}); err != nil || !slices.Equal(absent, []string{c2}) {
		t.Errorf("a stranger's repository lacks %v of %s and %s (%v)", absent, c1, c2, err)
	}
}

// TestAnAnnouncementFindsTheDataOfAcceptedStates: a held announcement is released with the data that
// a state of its maintainers names, also where this state was accepted before and a newer one of
// another maintainer, without objects, counts. An owner who only points to a lead gets nothing but
// what counts.
func TestAnAnnouncementFindsTheDataOfAcceptedStates(t *testing.T) {
	for name, acceptedFirst := range map[string]bool{"accepted before": true, "all at once": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c1 := w.work.Commit("a", "1")
			w.announce("alice", alice, "M "+alice, "m "+carol)
			w.state("data", alice, mainBranch, c1)
			w.give(alice, "main")
			want := []string{"release alice", "release carol", "release data", "release empty"}
			if acceptedFirst {
				w.release()
				w.wantAsked("release alice", "release data")
				want = []string{"release carol", "release empty"}
			}
			w.announce("carol", carol, alice)
			w.state("empty", carol)
			w.release()
			if got := w.asks(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
				t.Errorf("asked ingest for %q, want %q in any order", got, want)
			}
			w.wantRefs(alice)
			w.wantRefs(carol)
			if absent, err := w.repo(carol).Missing(t.Context(), []string{c1}); err != nil || len(absent) > 0 {
				t.Errorf("carol's repository lacks %v (%v)", absent, err)
			}

			w.announce("bob", bob, "M "+alice)
			w.release()
			w.wantAsked()
			if has, err := w.repo(bob).HasObjects(); has || err != nil {
				t.Errorf("an owner who only points to a lead got what no reference reaches (%v)", err)
			}
		})
	}
}

// TestWhoOnlyPointsToALeadGetsCopies of what references reach, and pays for them: no stranger's
// packs are linked because a stranger wrote a name.
func TestWhoOnlyPointsToALeadGetsCopies(t *testing.T) {
	w := newWorld(t)
	c1, secret := w.work.Commit("a", "1"), w.work.Commit("a", "secret")
	w.announce("alice", alice, "M "+alice)
	w.state("state", alice, mainBranch, c1)
	w.give(alice, "main") // one pack
	w.announce("carol", carol, "M "+alice)
	w.release()
	w.wantRefs(carol, mainBranch, c1)
	absent, err := w.repo(carol).Missing(t.Context(), []string{c1, secret})
	size, failed := w.repo(carol).Bytes()
	if errors.Join(err, failed) != nil || !slices.Equal(absent, []string{secret}) || w.paid != size {
		t.Errorf("carol's repository lacks %v, and %d of %d bytes are paid for (%v, %v)", absent, w.paid, size, err, failed)
	}
}

// TestRefusedReleaseIsTakenBack: references fall back to nothing where nothing else counts.
func TestRefusedReleaseIsTakenBack(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("announcement", alice))
	first := w.state("first", alice, mainBranch, c1)
	w.give(alice, "main")
	w.refuse = first.ID
	// As a push leaves them:
	gittest.Do(t, w.repo(alice), func(repo *repository.Locked) error {
		return repo.SetRefs(t.Context(), map[string]string{mainBranch: c1}, nil, "")
	})
	if result := w.release(); len(result.Released) != 0 {
		t.Errorf("result %+v", result)
	}
	w.wantAsked("release first")
	w.wantRefs(alice)
}

// TestRefusedReleaseGoesBackToTheStateBefore: bob, whose state the references followed, has lost his
// authority, so that no state counts and the references stay as they are. A state that is refused does
// not take them away.
func TestRefusedReleaseGoesBackToTheStateBefore(t *testing.T) {
	w := newWorld(t)
	c1, c2 := w.work.Commit("a", "1"), w.work.Commit("a", "2")
	w.accept(w.announce("announcement", alice))
	w.followed = w.state("bob's", bob, mainBranch, c1, devBranch, c1)
	w.accept(w.followed)
	w.refuse = w.state("refused", alice, mainBranch, c2).ID
	w.give(alice, "main")
	before := map[string]string{mainBranch: c1, devBranch: c1}
	for name, refs := range map[string]map[string]string{"a fetch": before, "a push": {mainBranch: c2}} {
		gittest.Do(t, w.repo(alice), func(repo *repository.Locked) error { return repo.SetRefs(t.Context(), refs, nil, "") })
		w.release()
		if got := w.refs(alice); !maps.Equal(got, before) {
			t.Errorf("after %s the references are %v, want %v", name, got, before)
		}
		w.state("refused", alice, mainBranch, c2)
		w.refuse = w.held[len(w.held)-1].ID
	}
}

// TestWhatNoStateCountsFor: where no state counts the references stay, unless the author of the
// state that they follow has deleted it.
func TestWhatNoStateCountsFor(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("announcement", alice))
	w.give(alice, "main")
	gittest.Do(t, w.repo(alice), func(repo *repository.Locked) error {
		return repo.SetRefs(t.Context(), map[string]string{mainBranch: c1}, nil, "")
	})
	w.release()
	w.wantRefs(alice, mainBranch, c1)
	w.stateDeleted = true
	w.release()
	w.wantRefs(alice)
	if absent, err := w.repo(alice).Missing(t.Context(), []string{c1}); err != nil || len(absent) > 0 {
		t.Errorf("the objects went too: %v, %v", absent, err)
	}
}

// TestIngestAway: references are there before the release is committed; asked again later it is, by
// another worker too. A release that is a duplicate because its first verdict was lost counts.
func TestIngestAway(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("announcement", alice))
	w.announce("a stranger's", bob, alice)
	state, pr := w.state("state", alice, mainBranch, c1), w.pull("pull", carol, c1, alice)
	w.give(alice, "main")
	w.away = true
	if _, err := w.tryRelease(alice); !errors.Is(err, candidates.ErrNoVerdict) {
		t.Fatalf("result without ingest: %v", err)
	}
	w.wantRefs(alice, mainBranch, c1, nostrPrefix+pr.ID, c1)
	w.away, w.lose = false, state.ID
	w.r = &release.Releaser{Store: w.store, Offerer: w, Events: w, Log: w.r.Log}
	if result := w.release(alice); len(result.Released) != 2 || result.Released[0].ID != state.ID {
		t.Errorf("result %+v", result)
	}
	w.wantRefs(alice, mainBranch, c1, nostrPrefix+pr.ID, c1)
}

// TestBrokenSiblingStandsInNobodysWay: what is wrong with one owner's repository is told, and
// everybody else's is released; nor does a state in the way that no repository can have.
func TestBrokenSiblingStandsInNobodysWay(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("alice", alice))
	w.accept(w.announce("mallory", bob))
	w.give(alice, "main")
	w.give(bob, "main")
	must(t, os.WriteFile(filepath.Join(w.repo(bob).Path, "HEAD"), []byte("nonsense"), 0o644))
	w.state("mallory's", bob, mainBranch, c1)
	w.state("alice's", alice, mainBranch, c1)
	w.state("impossible", alice, mainBranch, w.work.Git("rev-parse", "HEAD:a")) // a branch that names a file
	if _, err := w.tryRelease(); err == nil {
		t.Error("nothing is said of the broken repository")
	}
	w.wantAsked("release alice's")
}
