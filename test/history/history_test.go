package history

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

func TestMain(m *testing.M) { world.Main(m) }

const (
	identifiers = 6
	gitServers  = 4
	steps       = 90
	pause       = 300 * time.Millisecond // between two steps, at most
	workerTTL   = "3s"
	pushesOnce  = 3
	// quiet is how long the deployment may take in the end to be what the model says.
	quiet = 90 * time.Second
)

// seeds are those that TENDRIL_SEED names (7, or 1-50), or one.
func seeds(t *testing.T) (list []uint64) {
	t.Helper()
	first, last, several := strings.Cut(cmpOr(os.Getenv("TENDRIL_SEED"), "1"), "-")
	from, err := strconv.ParseUint(first, 10, 64)
	must(t, err)
	to := from
	if several {
		to, err = strconv.ParseUint(last, 10, 64)
		must(t, err)
	}
	for seed := from; seed <= to; seed++ {
		list = append(list, seed)
	}
	return list
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// TestRandomHistories: whatever people and machines do, the repositories are in the end what the
// events say, and no acknowledged push is lost.
func TestRandomHistories(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := newStory(t, seed)
			for n := range steps {
				s.step(n)
				time.Sleep(time.Duration(s.dice.Int64N(int64(pause))))
			}
			s.pushes.Wait()
			s.rest()
			s.check()
		})
	}
}

// story is one history.
type story struct {
	t      *testing.T
	began  time.Time
	dice   *rand.Rand // of the story alone: what happens beside it has none
	u      *universe
	m      *model
	people []*fixture.Person // owners and maintainers; the last is a stranger
	names  map[string]string // of people, by public key
	gits   []*server
	volume string
	nats   *world.NATS

	workers []*process
	ingest  *process
	gateway *process

	mu     sync.Mutex // of the model
	away   sync.Mutex // of the processes that come and go
	clock  nostr.Timestamp
	pushes sync.WaitGroup
	slots  chan struct{}
}

// process is a process of the deployment that comes and goes.
type process struct {
	name, service string
	*world.Replica
	frozen bool
	due    time.Time // to go on, or to start again
	gone   bool
	env    map[string]string
}

func newStory(t *testing.T, seed uint64) *story {
	dice := rand.New(rand.NewPCG(seed, 1))
	s := &story{
		t: t, began: time.Now(), dice: dice, u: newUniverse(t, dice), volume: world.Folder(t), nats: world.StartNATS(t),
		names: map[string]string{}, slots: make(chan struct{}, pushesOnce), clock: nostr.Now() - 5000,
	}
	s.m = &model{u: s.u, domain: fixture.Domain}
	for _, name := range []string{"alice", "bob", "carol", "stranger"} {
		p := fixture.NewPerson()
		s.people = append(s.people, p)
		s.names[p.PubKey] = name
	}
	all := slices.Collect(maps.Keys(s.u.served))
	slices.Sort(all)
	for n := range gitServers {
		// Each object is on two of the servers.
		var part []string
		for i, id := range all {
			if i%gitServers == n || (i+1)%gitServers == n {
				part = append(part, id)
			}
		}
		slices.SortFunc(part, func(a, b string) int { return slices.Index(s.u.tags, a) - slices.Index(s.u.tags, b) })
		s.gits = append(s.gits, newServer(t, s.u, part))
	}
	env := map[string]string{
		"NGIT_WORKER_TTL": workerTTL, "NGIT_CANDIDATE_ACK_WAIT": workerTTL, "NGIT_HUNT_USER_DELAY": "500ms", "NGIT_LOG_LEVEL": "info",
		"NGIT_DELETION_GRACE": "1h", "NGIT_SHUTDOWN_WAIT": "5s", "NGIT_EVENT_TIMEOUT": "10s",
	}
	for _, p := range []struct{ name, service string }{{"ingest", "ingest"}, {"one", "purgatory"}, {"two", "purgatory"}, {"gateway", "gateway"}} {
		one := &process{name: p.name, service: p.service, env: maps.Clone(env)}
		one.env["NGIT_RELAY_DATA_PATH"] = world.Folder(t)
		s.run(one)
		switch p.service {
		case "ingest":
			s.ingest = one
		case "gateway":
			s.gateway = one
		default:
			s.workers = append(s.workers, one)
		}
	}
	s.gateway.Door()
	for _, w := range s.workers {
		w.AwaitReady()
	}
	s.say("the deployment is ready; seed %d", seed)
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(100 * time.Millisecond):
				s.comeBack(false)
			}
		}
	})
	t.Cleanup(func() { close(over); watching.Wait() })
	return s
}

// say writes a line of the story.
func (s *story) say(format string, args ...any) {
	s.t.Logf("%5.1f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *story) run(p *process) {
	p.gone = false
	p.Replica = world.StartRun(s.t, []string{p.service}, s.nats.URL, s.volume, p.env)
}

// at is the time of the next event. Each is newer than those before.
func (s *story) at() nostr.Timestamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	return s.clock
}

func pick[T any](s *story, list []T) T { return list[s.dice.IntN(len(list))] }

func (s *story) identifier() string { return fmt.Sprint("repo", s.dice.IntN(identifiers)) }

// submit sends an event until it is answered, and remembers it.
func (s *story) submit(name string, ev *nostr.Event) *published {
	p := &published{Event: ev, name: name}
	s.mu.Lock()
	s.m.events = append(s.m.events, p)
	s.mu.Unlock()
	s.again(p)
	return p
}

// again sends an event that may have been sent before.
func (s *story) again(p *published) {
	answer := "no answer"
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		url, listens := s.door()
		if !listens {
			continue
		}
		err := world.At(s.t, url).TrySubmit(p.Event)
		if errors.Is(err, world.ErrHungUp) || err != nil && strings.HasPrefix(err.Error(), "error:") {
			continue
		}
		answer = "OK"
		s.mu.Lock()
		if err != nil {
			answer = err.Error()
		} else {
			p.accepted = true
		}
		s.mu.Unlock()
		break
	}
	s.say("%s publishes %s (%.6s): %s", s.names[p.PubKey], p.name, p.ID, answer)
}

// door is where the gateway listens.
func (s *story) door() (url string, listens bool) {
	s.away.Lock()
	defer s.away.Unlock()
	return s.gateway.Listens()
}

// served reports whether the gateway serves an event now; false too if it is away.
func (s *story) served(ev *nostr.Event) bool {
	got, _ := s.fetch(nostr.Filter{IDs: []string{ev.ID}})
	return len(got) == 1
}

func (s *story) fetch(f nostr.Filter) ([]*nostr.Event, error) {
	url, listens := s.door()
	if !listens {
		return nil, errors.New("the gateway is away")
	}
	socket, err := world.TryDial(s.t, world.At(s.t, url).Relay())
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	return socket.Query(f)
}

// step is the next thing that happens.
func (s *story) step(n int) {
	if n < 2*identifiers { // in the beginning everything is announced
		s.announce(s.people[n%2], fmt.Sprint("repo", n/2))
		return
	}
	switch roll := s.dice.IntN(100); {
	case roll < 10:
		s.announce(pick(s, s.people), s.identifier())
	case roll < 28:
		s.state(pick(s, s.people), s.identifier())
	case roll < 50:
		s.push()
	case roll < 58:
		s.pull()
	case roll < 66:
		s.delete()
	case roll < 72:
		s.mu.Lock()
		p := pick(s, s.m.events)
		s.mu.Unlock()
		s.again(&published{Event: p.Event, name: p.name + " again", accepted: true})
	case roll < 84:
		server := s.dice.IntN(gitServers)
		mode := pick(s, modes)
		s.say("git server %d answers %s", server, mode)
		s.gits[server].set(mode)
	default:
		s.disturb()
	}
}

func (s *story) announce(p *fixture.Person, identifier string) {
	var maintainers []string
	for _, other := range s.people[:3] {
		if other != p && s.dice.IntN(2) == 0 {
			maintainers = append(maintainers, other.PubKey)
		}
	}
	if p == s.people[3] { // a stranger names whom he likes
		maintainers = []string{s.people[0].PubKey}
	}
	more := slices.Clone(maintainers)
	for _, n := range s.dice.Perm(gitServers) {
		more = append(more, s.gits[n].URL+"/"+identifier+".git")
	}
	var names []string
	for _, key := range maintainers {
		names = append(names, s.names[key])
	}
	s.submit(fmt.Sprintf("an announcement of %s with %v", identifier, names), p.At(s.at()).Announce(identifier, more...))
}

// newState makes a state with random references.
func (s *story) newState(p *fixture.Person, identifier string, commits []string) (*nostr.Event, string) {
	refs := map[string]string{"refs/heads/main": pick(s, commits)}
	names := []string{"main " + refs["refs/heads/main"][:6]}
	head := "refs/heads/main"
	if s.dice.IntN(3) == 0 {
		refs["refs/heads/dev"] = pick(s, commits)
		names = append(names, "dev "+refs["refs/heads/dev"][:6])
		if s.dice.IntN(2) == 0 {
			head = "refs/heads/dev"
			names = append(names, "HEAD dev")
		}
	}
	for n, id := range s.u.tags {
		if s.dice.IntN(4) == 0 {
			refs[fmt.Sprint("refs/tags/v", n+1)] = id
			names = append(names, fmt.Sprint("v", n+1))
		}
	}
	refs["HEAD"] = "ref: " + head
	return p.At(s.at()).State(identifier, refs), fmt.Sprintf("a state of %s (%s)", identifier, strings.Join(names, ", "))
}

func (s *story) state(p *fixture.Person, identifier string) {
	commits := s.u.commits
	if s.dice.IntN(6) == 0 {
		commits = []string{s.u.never}
	}
	ev, name := s.newState(p, identifier, commits)
	s.submit(name, ev)
}

// push publishes a state and pushes it, beside the rest of the story.
func (s *story) push() {
	p, identifier := pick(s, s.people[:3]), s.identifier()
	ev, name := s.newState(p, identifier, s.u.commits)
	owner := p
	if s.dice.IntN(4) == 0 {
		owner = pick(s, s.people[:3]) // to whose address a maintainer pushes
	}
	state := s.submit(name, ev)
	select {
	case s.slots <- struct{}{}:
	default:
		return // enough are under way
	}
	s.mu.Lock()
	at := len(s.m.pushed)
	s.m.pushed = append(s.m.pushed, push{owner: owner.PubKey, identifier: identifier, state: state})
	s.mu.Unlock()
	s.pushes.Go(func() {
		defer func() { <-s.slots }()
		err := s.pushState(owner, identifier, state.Event)
		answer := "acknowledged"
		if err != nil {
			answer = err.Error()
		}
		s.mu.Lock()
		s.m.pushed[at].acknowledged = err == nil
		s.mu.Unlock()
		s.say("a push of %.6s to %s's %s: %s", state.ID, s.names[owner.PubKey], identifier, answer)
	})
}

func (s *story) pushState(owner *fixture.Person, identifier string, state *nostr.Event) error {
	url, listens := s.door()
	if !listens {
		return errors.New("the gateway is away")
	}
	address := world.At(s.t, url).Repo(owner, identifier)
	out, err := s.u.work.TryGit("ls-remote", "--heads", "--tags", "--refs", address)
	if err != nil {
		return errors.New("ls-remote fails: " + lastLine(out))
	}
	wanted, _ := refs(state)
	args := []string{"push", "--atomic", address}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		args = append(args, "+"+wanted[name]+":"+name)
	}
	for line := range strings.Lines(out) {
		_, name, is := strings.Cut(strings.TrimSpace(line), "\t")
		if is && wanted[name] == "" {
			args = append(args, ":"+name)
		}
	}
	if out, err = s.u.work.TryGit(args...); err != nil {
		return errors.New("refused or failed: " + lastLine(out))
	}
	return nil
}

// lastLine is what git says that matters.
func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		if strings.Contains(line, "rejected]") || strings.HasPrefix(line, "error:") || strings.HasPrefix(line, "remote:") || strings.HasPrefix(line, "fatal:") {
			return strings.TrimSpace(line)
		}
	}
	return lines[len(lines)-1]
}

// pull publishes a pull request of a stranger.
func (s *story) pull() {
	p, owner, identifier, commit := s.people[3], pick(s, s.people[:3]), s.identifier(), pick(s, s.u.pulls)
	clone := nostr.Tag{"clone"}
	for _, n := range s.dice.Perm(gitServers) {
		clone = append(clone, s.gits[n].URL+"/"+identifier+".git")
	}
	s.submit(fmt.Sprintf("a pull request for %s's %s (%.6s)", s.names[owner.PubKey], identifier, commit),
		p.At(s.at()).Pull("please", commit, owner.Repo(identifier), clone))
}

// delete deletes something that somebody has published.
func (s *story) delete() {
	s.mu.Lock()
	target := pick(s, s.m.events)
	s.mu.Unlock()
	var author *fixture.Person
	for _, p := range s.people {
		if p.PubKey == target.PubKey {
			author = p
		}
	}
	if target.Kind == 5 || author == nil {
		return
	}
	tag, how := nostr.Tag{"e", target.ID}, "by id"
	if address := address(target); address != "" && s.dice.IntN(3) == 0 {
		tag, how = nostr.Tag{"a", address}, "by address"
	}
	seen := s.served(target.Event)
	s.submit(fmt.Sprintf("a deletion %s of %s (%.6s), which is served: %t", how, target.name, target.ID, seen), author.At(s.at()).Sign(5, "", tag))
	s.mu.Lock()
	defer s.mu.Unlock()
	target.seen = target.seen || seen
}

// disturb kills, stops or freezes a process.
func (s *story) disturb() {
	victims := slices.Concat(s.workers, s.workers, s.workers, []*process{s.ingest, s.gateway})
	v := pick(s, victims)
	s.away.Lock()
	defer s.away.Unlock()
	if v.gone || v.frozen {
		return
	}
	switch s.dice.IntN(4) {
	case 0:
		s.say("%s is killed, and starts again", v.name)
		v.Kill()
		s.run(v)
	case 1:
		s.say("%s is killed", v.name)
		v.Kill()
		v.gone, v.due = true, time.Now().Add(time.Duration(s.dice.IntN(4000))*time.Millisecond)
	case 2:
		if v.Output() == "" {
			return
		}
		s.say("%s is stopped, and starts again", v.name)
		if err := v.Stop(); err != nil {
			s.t.Errorf("%s ends with %v", v.name, err)
		}
		s.run(v)
	default:
		s.say("%s is frozen", v.name)
		if err := syscall.Kill(v.PID(), syscall.SIGSTOP); err != nil {
			s.t.Error(err)
		}
		v.frozen, v.due = true, time.Now().Add(time.Duration(500+s.dice.IntN(5000))*time.Millisecond)
	}
}

// comeBack lets those processes go on that have been away for long enough, or all.
func (s *story) comeBack(everyone bool) {
	s.away.Lock()
	defer s.away.Unlock()
	for _, v := range slices.Concat(s.workers, []*process{s.ingest, s.gateway}) {
		if !everyone && time.Now().Before(v.due) {
			continue
		}
		switch {
		case v.frozen:
			s.say("%s goes on", v.name)
			v.frozen = false
			if err := syscall.Kill(v.PID(), syscall.SIGCONT); err != nil {
				s.t.Error(err)
			}
		case v.gone:
			s.say("%s starts", v.name)
			s.run(v)
		}
	}
}

// rest ends all disturbances, and has everybody publish again what they have published: what was
// refused because something had not come yet, and what is old.
func (s *story) rest() {
	s.comeBack(true)
	for _, g := range s.gits {
		g.set("well")
	}
	for _, v := range slices.Concat(s.workers, []*process{s.ingest}) {
		if !v.Running() {
			s.t.Fatalf("%s has ended: %v", v.name, v.Ended())
		}
		v.AwaitReady()
	}
	s.gateway.Door()
	s.say("all is quiet; everything is published again")
	s.republish(func(*published) bool { return true })
}

// republish sends events again, on one connection.
func (s *story) republish(which func(*published) bool) {
	url, _ := s.door()
	socket, err := world.TryDial(s.t, world.At(s.t, url).Relay())
	must(s.t, err)
	defer socket.Close()
	for _, p := range s.m.events {
		if !which(p) {
			continue
		}
		ok, _, err := socket.TrySubmit(p.Event)
		must(s.t, err)
		p.accepted = p.accepted || ok
	}
}
