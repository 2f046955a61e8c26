// Package status is what an operator sees of a running system at a glance: its relays, shards, held
// events, queues, and how far its processes are behind. It only reads the bus.
package status

import (
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

// Report is the state of a system as its bus tells it. Its JSON is for machines; names stay.
type Report struct {
	At     time.Time `json:"at"`
	Server Server    `json:"server"`
	Log    Log       `json:"log"`
	Relays []Relay   `json:"relays"`
	Shards []Shard   `json:"shards"` // of those with a worker or with held events
	Held   Held      `json:"held"`
	Lanes  []Lane    `json:"candidates"`
	Reads  []Read    `json:"reads"`
}

// Read is how far a process has read a stream that it keeps something of.
type Read struct {
	Process string `json:"process"`
	Name    string `json:"projection"`
	Stream  string `json:"stream"`
	Seq     uint64 `json:"sequence"`
	LastSeq uint64 `json:"last_sequence"` // of the stream
}

// Server is the NATS server that was asked.
type Server struct {
	URL     string `json:"url"`
	Version string `json:"version"`
}

// Log is the log of accepted events, and who writes it.
type Log struct {
	Messages    uint64    `json:"messages"` // events, and the writer's mark
	LastSeq     uint64    `json:"last_sequence"`
	Bytes       uint64    `json:"bytes"`
	Writer      string    `json:"writer,omitempty"`      // who began last to write; empty: nobody yet
	WriterSince time.Time `json:"writer_since,omitzero"` // by the writer's clock
	Rejected    uint64    `json:"rejected_ids"`          // how many rejected events are remembered
}

// Relay is another relay that is synced from.
type Relay struct {
	Name          string    `json:"relay"` // its identity: host, port, path
	URL           string    `json:"url,omitempty"`
	State         string    `json:"state"`            // of the connection
	Health        string    `json:"health"`           // healthy, degraded and so on
	Worker        string    `json:"worker,omitempty"` // who holds it; empty: nobody
	Repositories  int       `json:"repositories_confirmed"`
	Roots         int       `json:"roots_confirmed"`
	Subscriptions int       `json:"subscriptions"`
	Failures      int       `json:"failures,omitempty"`
	LastError     string    `json:"last_error,omitempty"`
	NextAttempt   time.Time `json:"next_attempt,omitzero"`
	CompleteUntil time.Time `json:"complete_until,omitzero"`
}

// Shard is a 64th of the identifiers.
type Shard struct {
	Shard  string `json:"shard"`
	Worker string `json:"worker,omitempty"` // who holds it; empty: nobody
	Held   int    `json:"held"`             // events that wait for git data
	Hunts  int    `json:"hunts"`            // identifiers whose git data is awaited or hunted
}

// Held are the events in purgatory.
type Held struct {
	Events  int            `json:"events"`
	Phases  map[string]int `json:"phases"` // waiting, silent, vouched
	Kinds   map[int]int    `json:"kinds"`
	Hunts   int            `json:"hunts"` // identifiers with events that wait
	Oldest  time.Time      `json:"oldest,omitzero"`
	Expires time.Time      `json:"next_expiry,omitzero"`
}

// Lane is one of the queues of candidates.
type Lane struct {
	Name     string `json:"lane"`
	Queued   uint64 `json:"queued"`   // packs of candidates, those with the writer included
	Deciding int    `json:"deciding"` // with the writer
	Bytes    uint64 `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"`
}

// heldEvent is what is kept of an entry of grasp-held.
type heldEvent struct {
	identifier string
	kind       int
	phase      proto.Phase
	at, until  time.Time
}

// claims are who holds what, by group and name.
type claims map[string]map[string]proto.Claim

// relays returns every relay of which the bus knows something, by name. live are the workers that
// are there, by group: a claim of another is nobody's.
func relays(states map[string]proto.RelayState, held claims, live map[string]map[string]proto.Worker) []Relay {
	all := make([]Relay, 0, len(states))
	for token, s := range states {
		all = append(all, Relay{
			Name: decoded(token), URL: s.URL, State: stateName(s.Connection), Health: health.State(s.Health).String(),
			Worker:       holder(held, live, proto.GroupRelays, token),
			Repositories: s.Repos, Roots: s.Roots, Subscriptions: s.Subscriptions,
			Failures: s.Failures, LastError: s.LastError, NextAttempt: s.NextAttempt, CompleteUntil: s.CompleteUntil,
		})
	}
	for token := range held[proto.GroupRelays] {
		if _, known := states[token]; known {
			continue
		}
		if worker := holder(held, live, proto.GroupRelays, token); worker != "" {
			all = append(all, Relay{Name: decoded(token), State: session.Disconnected.String(), Health: health.Disconnected.String(), Worker: worker})
		}
	}
	slices.SortFunc(all, func(a, b Relay) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func decoded(token string) string {
	if name, err := proto.DecodeRelay(token); err == nil {
		return name
	}
	return token
}

func stateName(connection int) string {
	if connection < int(session.Disconnected) || connection > int(session.Incomplete) {
		return "unknown"
	}
	return session.Connection(connection).String()
}

// holder is the live worker that holds a key; empty if there is none.
func holder(held claims, live map[string]map[string]proto.Worker, group, key string) string {
	claim, ok := held[group][key]
	if !ok || live[group][claim.Worker].Incarnation != claim.Incarnation {
		return ""
	}
	return claim.Worker
}

// hunted reports whether git data is hunted for an event: in the other phases it is only kept.
func (h heldEvent) hunted() bool { return h.phase == proto.PhaseWaiting }

// purgatory adds up what is held, in all and by shard.
func purgatory(events map[string]heldEvent, held claims, live map[string]map[string]proto.Worker) (Held, []Shard) {
	sum := Held{Events: len(events), Phases: map[string]int{}, Kinds: map[int]int{}}
	var shards [proto.Shards]Shard
	for i := range shards {
		name := proto.ShardName(i)
		shards[i] = Shard{Shard: name, Worker: holder(held, live, proto.GroupShards, name)}
	}
	hunts := map[string]bool{}
	for _, h := range events {
		shard := &shards[proto.ShardOf(h.identifier)]
		shard.Held++
		sum.Phases[string(h.phase)]++
		sum.Kinds[h.kind]++
		if sum.Oldest.IsZero() || h.at.Before(sum.Oldest) {
			sum.Oldest = h.at
		}
		if sum.Expires.IsZero() || h.until.Before(sum.Expires) {
			sum.Expires = h.until
		}
		if h.hunted() && !hunts[h.identifier] {
			hunts[h.identifier] = true
			shard.Hunts++
		}
	}
	sum.Hunts = len(hunts)
	return sum, slices.DeleteFunc(shards[:], func(s Shard) bool { return s.Worker == "" && s.Held == 0 })
}

// kindNames are the kinds that wait for git data.
var kindNames = map[int]string{
	nostr.KindAnnouncement: "announcements", nostr.KindState: "states",
	nostr.KindPR: "pull requests", nostr.KindPRUpdate: "updates of pull requests",
}
