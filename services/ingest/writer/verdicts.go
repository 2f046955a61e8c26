package writer

import (
	"encoding/json"
	"strings"
	"time"

	"tendril.dev/proto"
)

// answer tells the packs of a committed batch how their events ended, in the order of the
// decisions.
func (w *Writer) answer(b *batch) {
	now := time.Now()
	for i := range b.decided {
		x := &b.decided[i]
		w.Metrics.decided(x, now)
		if x.pack != nil {
			w.judge(x.item, verdictOf(x))
		}
	}
	w.Metrics.observeMemory(w.Park.Len(), w.Rejected.Len())
	w.Log.Debug("batch committed", "candidates", len(b.decided), "logged", len(b.logged), "head", w.Index.Seq())
}

func verdictOf(x *decided) proto.Verdict {
	v := proto.Verdict{
		ID: x.candidate.Event.ID, Kind: x.candidate.Event.Kind,
		Outcome: x.decision.Outcome, Message: x.decision.Message, Seq: x.seq, Retry: x.decision.MayChange(),
	}
	if !x.decision.RetryAt.IsZero() {
		v.Retry, v.RetryAt = true, x.decision.RetryAt.Unix()
	}
	return v
}

// Bounds of a message of verdicts. Where it would be larger, its sentences are cut.
const (
	maxVerdictBytes = 512 << 10
	maxSentence     = 64
)

// tell sends the verdicts on a pack to its sender. Nothing is kept for one that is not there any
// more.
func (w *Writer) tell(p *pack) {
	if p.Reply == "" {
		return
	}
	data, err := json.Marshal(proto.Verdicts{Ref: p.Ref, Verdicts: p.verdicts})
	if err == nil && len(data) > maxVerdictBytes {
		for i := range p.verdicts {
			p.verdicts[i].Message = cut(p.verdicts[i].Message, maxSentence)
		}
		data, err = json.Marshal(proto.Verdicts{Ref: p.Ref, Verdicts: p.verdicts})
	}
	if err == nil {
		err = w.Bus.Conn.Publish(p.Reply, data)
	}
	if err != nil {
		w.Log.Warn("verdicts cannot be sent", "count", len(p.verdicts), "error", err)
	}
}

// cut shortens a text to so many bytes, without half a letter at its end.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
