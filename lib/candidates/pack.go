package candidates

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
)

// road is what candidates of one kind share: their window, and the packs that are being filled. A
// road that is full holds up no other.
type road struct {
	room *window
	// packs: candidates of this road travel in packs; otherwise each goes alone, at once.
	packs bool
	// eager: a pack is sent as soon as it has an event, unless ingest has enough of the road to do.
	eager bool
	// fillFor is how long a pack is filled before it is sent, fillForBusy the same while ingest has
	// enough of the road to do.
	fillFor, fillForBusy time.Duration

	// Below is guarded by the sender's lock.
	open    map[key]*pack // being filled
	under   int           // packs that were closed and have no verdict yet
	outbox  []*pack       // closed, not published yet, in order
	sending bool          // somebody publishes what is in the outbox
}

// The roads, by number. Candidates without a verdict are bounded on each of them by itself.
const (
	roadUser = iota
	roadRelease
	roadLive
	roadPast // historic and daily
	numRoads
)

func newRoads() (roads [numRoads]*road) {
	for n, r := range map[int]road{
		roadUser:    {room: newWindow(2048, 8<<20)},
		roadRelease: {room: newWindow(2048, 8<<20)},
		roadLive:    {room: newWindow(2048, 4<<20), packs: true, eager: true, fillFor: 2 * time.Millisecond, fillForBusy: 2 * time.Millisecond},
		roadPast:    {room: newWindow(4096, 8<<20), packs: true, fillFor: 2 * time.Millisecond, fillForBusy: 10 * time.Millisecond},
	} {
		r.open = map[key]*pack{}
		roads[n] = &r
	}
	return roads
}

func roadOf(l proto.Lane) int {
	switch l {
	case proto.LaneUser:
		return roadUser
	case proto.LaneRelease:
		return roadRelease
	case proto.LaneSyncLive:
		return roadLive
	}
	return roadPast
}

// busyWith is how many packs of a road under way are enough for ingest to do.
const busyWith = 4

// key is what the candidates of a pack have in common: all that its headers say.
type key struct {
	lane   proto.Lane
	source proto.Source
	relay  string
	client string
	action proto.Action
	reason string
}

// pack is several candidates in one message.
type pack struct {
	key
	road *road
	ref  string // once it is closed
	from string // who shares the window, see Candidate.origin

	lines [][]byte // until it is closed
	done  []func(proto.Verdict, error)
	size  int // bytes of its message
	room  int // bytes it takes of the window

	data  []byte
	tries int       // sends that the queue did not refuse
	away  int       // sends in a row that found no queue
	at    time.Time // when to send again
}

// messageRoom is what is left for headers and the client's own framing below the largest message.
const messageRoom = 4 << 10

// mostBytes is how large a pack may be on this bus.
func (s *Sender) mostBytes() int {
	if most := int(s.conn.MaxPayload()) - messageRoom; most > 0 {
		return min(proto.MaxPackBytes, most)
	}
	return proto.MaxPackBytes
}

// add puts a candidate, which has entered the window, into a pack, and sends what is ready. It is
// called with the lock and gives it up.
func (s *Sender) add(r *road, c *Candidate, line []byte) {
	k := key{c.Lane, c.Source, c.Relay, c.Client, c.Action, c.Reason}
	p := r.open[k]
	if p != nil && p.size+1+len(line) > s.mostBytes() {
		s.close(p)
		p = nil
	}
	if p == nil {
		p = &pack{key: k, road: r, from: c.origin()}
	}
	p.lines = append(p.lines, line)
	p.done = append(p.done, c.Done)
	p.size += len(line)
	if len(p.lines) > 1 {
		p.size++ // the line break
	}
	p.room += min(overhead+len(line), r.room.most)
	switch {
	case !r.packs:
		// Nothing is in order between those who send alone, and nobody waits for another's turn.
		s.seal(p)
		s.mu.Unlock()
		s.publish(p)
		return
	case len(p.lines) >= proto.MaxPackEvents || p.size >= s.mostBytes() || r.eager && r.under < busyWith:
		s.close(p)
	case len(p.lines) == 1:
		r.open[k] = p
		wait := r.fillFor
		if r.under >= busyWith {
			wait = r.fillForBusy
		}
		time.AfterFunc(wait, func() { s.ripe(p) })
	}
	s.drain(r)
}

// ripe sends a pack whose time is over, unless it is sent already.
func (s *Sender) ripe(p *pack) {
	s.mu.Lock()
	if p.road.open[p.key] == p {
		s.close(p)
	}
	s.drain(p.road)
}

// close ends the filling of a pack and puts it in line for the bus.
func (s *Sender) close(p *pack) {
	if p.road.open[p.key] == p {
		delete(p.road.open, p.key)
	}
	s.seal(p)
	p.road.outbox = append(p.road.outbox, p)
}

// seal gives a pack its message and a ref. From here on it waits for verdicts.
func (s *Sender) seal(p *pack) {
	p.data = p.lines[0]
	if len(p.lines) > 1 {
		p.data = proto.JoinPack(p.lines)
	}
	p.lines = nil
	s.next++
	p.ref = strconv.FormatUint(s.next, 36)
	p.tries, p.at = 1, time.Now().Add(s.resendAfter)
	p.road.under++
	s.waiting[p.ref] = p
}

// drain publishes what is in line, in its order, unless somebody does so already. It is called
// with the lock and gives it up.
func (s *Sender) drain(r *road) {
	if r.sending {
		s.mu.Unlock()
		return
	}
	r.sending = true
	for len(r.outbox) > 0 {
		p := r.outbox[0]
		r.outbox[0] = nil
		r.outbox = r.outbox[1:]
		s.mu.Unlock()
		s.publish(p)
		s.mu.Lock()
	}
	r.outbox, r.sending = nil, false
	s.mu.Unlock()
}

// message is what is sent of a pack. Each has a header of its own, because the client writes its
// reply subject into the message, and the bus looks at it when it refuses one.
func (p *pack) message(inbox string) *nats.Msg {
	h := make(nats.Header, 6)
	for _, f := range [...]struct{ name, value string }{
		{proto.HeaderSource, string(p.source)}, {proto.HeaderRelay, p.relay}, {proto.HeaderClient, p.client},
		{proto.HeaderAction, string(p.action)}, {proto.HeaderReason, p.reason}, {proto.HeaderReply, inbox}, {proto.HeaderRef, p.ref},
	} {
		if f.value != "" {
			h[f.name] = []string{f.value}
		}
	}
	return &nats.Msg{Subject: p.lane.Subject(), Data: p.data, Header: h}
}
