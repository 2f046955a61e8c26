package writer

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
)

// pack is one message of a lane: it is read while the batch before it commits, decided in one batch
// or several, and answered and acknowledged when all of its events are decided and committed.
type pack struct {
	candidate.Pack
	msg     jetstream.Msg
	arrived time.Time // when it was published
	behind  uint64    // messages that waited behind it in its lane

	// Below belongs to the writer.
	verdicts []proto.Verdict // one for each event, in order
	open     int             // events without a verdict
	settled  bool            // it is answered, or given back
	again    bool            // one of its events could not be decided: it comes again as a whole
	failedAt uint64          // how many candidates the writer had decided when one could not be
	ending   string          // why it is not to be delivered again, if its only event was refused
}

// item is one event of a pack.
type item struct {
	pack *pack // nil: the event did not come in a pack
	n    int
}

// readPack reads a message. It does nothing that only the writer may.
func readPack(m jetstream.Msg) *pack {
	p := &pack{Pack: candidate.Parse(m.Subject(), m.Headers(), m.Data()), msg: m}
	p.verdicts, p.open = make([]proto.Verdict, len(p.Events)), len(p.Events)
	if meta, err := m.Metadata(); err == nil {
		p.arrived, p.behind = meta.Timestamp, meta.NumPending
	}
	return p
}

// packsOf returns the packs that some events are of, each once.
func packsOf(items []item) (packs []*pack) {
	for _, it := range items {
		if len(packs) == 0 || packs[len(packs)-1] != it.pack {
			packs = append(packs, it.pack)
		}
	}
	return packs
}

// giveBack lets packs be delivered again at once, unless they are settled. If that fails, they come
// back when their time for an answer is over.
func giveBack(packs ...*pack) {
	for _, p := range packs {
		if !p.settled {
			p.settled = true
			_ = p.msg.Nak()
		}
	}
}

// judge keeps the verdict on one event of a pack. The last one settles the pack.
func (w *Writer) judge(it item, v proto.Verdict) {
	it.pack.verdicts[it.n] = v
	if it.pack.open--; it.pack.open == 0 {
		w.settle(it.pack)
	}
}

// settle acknowledges a pack and tells its sender, or gives it back if not all of it was decided.
// If the acknowledgement is lost, the pack comes again, and its events are duplicates.
func (w *Writer) settle(p *pack) {
	p.settled = true
	var err error
	switch {
	case p.again:
		err = p.msg.NakWithDelay(againAfter)
	case p.ending != "" && len(p.Events) == 1:
		err = p.msg.TermWithReason(p.ending)
	default:
		err = p.msg.Ack()
	}
	if err != nil {
		w.Log.Debug("ending a pack of candidates", "error", err)
	}
	if !p.again {
		w.tell(p)
	}
}

// postpone has an event that could not be decided come again later, with its pack. If nothing was
// decided since the same happened to another event of it, the rest of the pack is not even tried.
func (w *Writer) postpone(it item) {
	p := it.pack
	hopeless := p.again && p.failedAt == w.decidedEver
	p.again, p.failedAt = true, w.decidedEver
	if p.open--; p.open == 0 || hopeless {
		w.settle(p)
	}
}
