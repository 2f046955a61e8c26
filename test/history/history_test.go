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
	steps       = 110
	pause       = 150 * time.Millisecond // between two steps, at most
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

// TestRandomHistories: after all that people and machines do, the repositories are in the end what the
// events say, and no acknowledged push is lost.
func TestRandomHistories(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := newStory(t, seed)
			defer s.end() // before the processes are ended
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
	people []*fixture.Person // owners and maintainers; the last two are wanderer and stranger
	names  map[string]string // of people, by public key
	gits   []*server
	volume string

	workers []*process
	ingest  *process
	gateway *process
	nats    *world.NATS
	// natsDue is when the NATS server starts again, if it is away; natsLost, when it last did.
	natsDue, natsLost time.Time

	mu     sync.Mutex // of the model
	away   sync.Mutex // of the processes that come and go
	clock  nostr.Timestamp
	until  time.Time // when the last event has expired
	pushes sync.WaitGroup
	slots  chan struct{}
	end    func() // of the watch over the processes
}

// People. The wanderer's announcements never list this server: it is a maintainer without a repository
// here. The stranger names whom he likes.
const (
	alice = iota
	bob
	carol
	wanderer
	stranger
)

func newStory(t *testing.T, seed uint64) *story {
	dice := rand.New(rand.NewPCG(seed, 1))
	s := &story{
		t: t, began: time.Now(), dice: dice, u: newUniverse(t, dice), volume: world.Folder(t), nats: world.StartNATS(t),
		names: map[string]string{}, slots: make(chan struct{}, pushesOnce), clock: nostr.Now() - 5000,
	}
	s.m = &model{u: s.u, domain: fixture.Domain, bans: map[ban]bool{}}
	for _, name := range []string{"alice", "bob", "carol", "wanderer", "stranger"} {
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
		host := "127.0.0.1"
		if n == 0 {
			host = "localhost"
		}
		s.gits = append(s.gits, newServer(t, s.u, host, part))
	}
	env := map[string]string{
		"NGIT_WORKER_TTL": workerTTL, "TENDRIL_TEST_CANDIDATE_ACK_WAIT": workerTTL, "TENDRIL_TEST_HUNT_USER_DELAY": "500ms", "NGIT_LOG_LEVEL": "info",
		"NGIT_DELETION_GRACE": "1h", "NGIT_SHUTDOWN_WAIT": "5s", "TENDRIL_TEST_EVENT_TIMEOUT": "10s",
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
	s.allReady()
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
	s.end = sync.OnceFunc(func() { close(over); watching.Wait() })
	t.Cleanup(s.end)
	return s
}

// say writes a line of the story.
func (s *story) say(format string, args ...any) {
	s.t.Logf("%5.1f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// at is the time of the next event. It may be that of the one before, but is not older.
func (s *story) at() nostr.Timestamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dice.IntN(4) > 0 {
		s.clock++
	}
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
	said := "no answer"
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		ok, message, err := s.trySubmit(p.Event)
		if err != nil || !ok && strings.HasPrefix(message, "error:") {
			continue
		}
		s.mu.Lock()
		p.answered(ok, message)
		s.mu.Unlock()
		said = strings.TrimSpace("OK " + message)
		if !ok {
			said = message
		}
		break
	}
	s.say("%s publishes %s (%.6s): %s", s.names[p.PubKey], p.name, p.ID, said)
}

// answered notes the answer to an event.
func (p *published) answered(ok bool, message string) {
	p.accepted = p.accepted || ok
	p.stored = p.stored || ok && message == ""
}

func (s *story) trySubmit(ev *nostr.Event) (ok bool, message string, err error) {
	url, listens := s.door()
	if !listens {
		return false, "", errors.New("the gateway is away")
	}
	socket, err := world.TryDial(s.t, world.At(s.t, url).Relay())
	if err != nil {
		return false, "", err
	}
	defer socket.Close()
	return socket.TrySubmit(ev)
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
	if n < 2*identifiers { // in the beginning everything is announced, by two or three people
		p := s.people[(n+n/2)%3]
		s.announce(p, fmt.Sprint("repo", n/2), s.plainRoles(p))
		return
	}
	early := n < steps/2
	acts := []struct {
		weight int
		act    func()
	}{
		{9, func() { p := pick(s, s.people); s.announce(p, s.identifier(), s.roles(p)) }},
		{4, func() { s.reshape(s.identifier()) }},
		{16, func() { s.state(early) }},
		{18, func() { s.push() }},
		{5, func() { s.pull(early) }},
		{5, func() { s.pushPull() }},
		{3, func() { s.remark() }},
		{8, func() { s.delete() }},
		{2, func() { s.deleteStates(s.identifier()) }},
		{5, func() { s.ban() }},
		{5, func() { s.resend() }},
		{4, func() { s.age(s.identifier()) }},
		{10, func() { s.changeServer() }},
		{14, func() { s.disturb() }},
	}
	sum := 0
	for _, a := range acts {
		sum += a.weight
	}
	roll := s.dice.IntN(sum)
	for _, a := range acts {
		if roll -= a.weight; roll < 0 {
			a.act()
			return
		}
	}
}

// rest ends all disturbances. What was stored must be there. Then everybody publishes again what they
// have published: what was refused because something had not come yet, and what is old.
func (s *story) rest() {
	s.comeBack(true)
	for _, g := range s.gits {
		g.set("well")
	}
	s.allReady()
	time.Sleep(time.Until(s.until)) // what expires has expired
	s.say("all is quiet")
	var lost []string
	for deadline := time.Now().Add(quiet / 3); ; time.Sleep(200 * time.Millisecond) {
		if lost = s.lost(); len(lost) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, ev := range lost {
		s.t.Error(ev)
	}
	s.explain(lost)
	s.say("everything is published again")
	s.republish(func(*published) bool { return true })
}

// republish sends events again, on one connection.
func (s *story) republish(which func(*published) bool) {
	url, listens := s.door()
	if !listens {
		return
	}
	socket, err := world.TryDial(s.t, world.At(s.t, url).Relay())
	if err != nil {
		return
	}
	defer socket.Close()
	for _, p := range s.m.events {
		if !which(p) {
			continue
		}
		ok, message, err := socket.TrySubmit(p.Event)
		if err != nil {
			return
		}
		p.answered(ok, message)
	}
}
