package history

import (
	"slices"
	"syscall"
	"time"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// process is a process of the deployment that comes and goes.
type process struct {
	name, service string
	*world.Replica
	frozen bool
	due    time.Time // to go on, or to start again
	gone   bool
	env    map[string]string
}

func (s *story) run(p *process) {
	p.gone = false
	p.Replica = world.StartRun(s.t, []string{p.service}, s.nats.URL, s.volume, p.env)
}

func (s *story) processes() []*process {
	return slices.Concat(s.workers, []*process{s.ingest, s.gateway})
}

// soon is a moment within this time.
func (s *story) soon(within time.Duration) time.Time {
	return time.Now().Add(time.Duration(s.dice.Int64N(int64(within))))
}

// disturb kills, stops or freezes a process, or kills the NATS server.
func (s *story) disturb() {
	roll := s.dice.IntN(10)
	v := pick(s, slices.Concat(s.workers, s.workers, s.processes()))
	s.away.Lock()
	defer s.away.Unlock()
	if roll == 0 {
		if s.natsDue.IsZero() {
			s.say("NATS is killed")
			s.nats.End(syscall.SIGKILL)
			s.natsDue = s.soon(1500 * time.Millisecond)
		}
		return
	}
	if v.gone || v.frozen || !v.Running() {
		return
	}
	switch {
	case roll < 3:
		s.say("%s is killed, and starts again", v.name)
		v.Kill()
		s.run(v)
	case roll < 5:
		s.say("%s is killed", v.name)
		v.Kill()
		v.gone, v.due = true, s.soon(4*time.Second)
	case roll < 7:
		if v.Output() == "" {
			return // it does not handle signals yet
		}
		s.say("%s is stopped, and starts again", v.name)
		if err := v.Stop(); err != nil && s.natsLost.IsZero() && s.natsDue.IsZero() {
			s.t.Errorf("%s ends with %v", v.name, err)
		}
		if s.dice.IntN(2) == 0 {
			s.run(v)
		} else {
			v.gone, v.due = true, s.soon(4*time.Second) // others take its work over
		}
	default:
		s.say("%s is frozen", v.name)
		if err := syscall.Kill(v.PID(), syscall.SIGSTOP); err != nil {
			s.t.Error(err)
		}
		v.frozen, v.due = true, s.soon(5*time.Second).Add(500*time.Millisecond)
	}
}

// comeBack lets those processes go on that have been away for long enough, or all. One that has ended
// by itself because NATS was away starts again, as its supervisor would have it.
func (s *story) comeBack(everyone bool) {
	s.away.Lock()
	defer s.away.Unlock()
	if !s.natsDue.IsZero() && (everyone || time.Now().After(s.natsDue)) {
		s.say("NATS starts")
		s.natsDue, s.natsLost = time.Time{}, time.Now()
		s.nats.Start()
	}
	for _, v := range s.processes() {
		switch due := everyone || time.Now().After(v.due); {
		case v.frozen && due:
			s.say("%s goes on", v.name)
			v.frozen = false
			if err := syscall.Kill(v.PID(), syscall.SIGCONT); err != nil {
				s.t.Error(err)
			}
		case v.gone && due:
			s.say("%s starts", v.name)
			s.run(v)
		case !v.gone && !v.frozen && !v.Running():
			err := v.Ended()
			s.say("%s has ended (%v), and starts again", v.name, err)
			if s.natsLost.IsZero() && s.natsDue.IsZero() {
				s.t.Errorf("%s has ended by itself: %v", v.name, err)
			}
			s.run(v)
		}
	}
}

// allReady waits until every process is ready. One may end by itself once more before that.
func (s *story) allReady() {
	for _, v := range s.processes() {
		fixture.Await(s.t, v.name+" is ready", func() bool {
			s.away.Lock()
			r := v.Replica
			s.away.Unlock()
			return r.Ready()
		})
	}
}
