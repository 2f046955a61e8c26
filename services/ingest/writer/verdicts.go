package writer

import (
	"encoding/json"
	"slices"
	"time"

	"tendril.dev/proto"
)

// maxVerdicts bounds one message of verdicts; at a few hundred bytes each it stays far below what NATS carries.
const maxVerdicts = 500

// finish acknowledges the candidates of a committed batch and tells their senders, in the order of the decisions.
func (w *Writer) finish(b *batch) {
	var senders []string
	verdicts := map[string][]proto.Verdict{}
	now := time.Now()
	for i := range b.decided {
		x := &b.decided[i]
		w.Metrics.decided(x, now)
		if x.msg == nil {
			continue
		}
		// If this is lost, the candidate comes again and is a duplicate.
		if err := x.msg.Ack(); err != nil {
			w.Log.Debug("acknowledging a candidate", "error", err)
		}
		reply := x.candidate.Reply
		if reply == "" {
			continue
		}
		if verdicts[reply] == nil {
			senders = append(senders, reply)
		}
		verdicts[reply] = append(verdicts[reply], verdictOf(x))
	}
	for _, reply := range senders {
		w.tell(reply, verdicts[reply])
	}
	w.Metrics.observeMemory(w.Park.Len(), w.Rejected.Len())
	w.Log.Debug("batch committed", "candidates", len(b.decided), "accepted", len(b.accepted), "head", w.Index.Seq())
}

func verdictOf(x *decided) proto.Verdict {
	return proto.Verdict{
		ID: x.candidate.Event.ID, Kind: x.candidate.Event.Kind, Ref: x.candidate.Ref,
		Outcome: x.decision.Outcome, Message: x.decision.Message, Seq: x.seq,
	}
}

// tell sends verdicts to a sender. Nothing is kept for one that is not there any more.
func (w *Writer) tell(reply string, verdicts []proto.Verdict) {
	if reply == "" {
		return
	}
	for part := range slices.Chunk(verdicts, maxVerdicts) {
		data, err := json.Marshal(proto.Verdicts{Verdicts: part})
		if err == nil {
			err = w.Bus.Conn.Publish(reply, data)
		}
		if err != nil {
			w.Log.Warn("verdicts cannot be sent", "count", len(part), "error", err)
		}
	}
}
