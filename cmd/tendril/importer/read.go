package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/tidwall/gjson"

	"tendril.dev/cmd/tendril/jsonl"
	"tendril.dev/lib/nostr"
)

var (
	errForm      = errors.New("not an event: its id, public key or signature is not lower-case hex of the right length")
	errID        = errors.New("the id is not that of the event")
	errSignature = errors.New("the signature is wrong")
)

// line is a line of the input on its way to the temporary file.
type line struct {
	record
	raw []byte
	ev  *nostr.Event // nil: it is none
	err error
}

// verify checks an event's id and signature, and makes its JSON one that can be sent.
func (l *line) verify() {
	if l.err != nil {
		return
	}
	l.kind = int32(gjson.GetBytes(l.raw, "kind").Int()) & 0xffff
	ev, plain, err := nostr.Parse(l.raw)
	var sig [64]byte
	switch {
	case err != nil:
		l.err = fmt.Errorf("not an event: %w", err)
	case !nostr.IsHex64(ev.ID) || !nostr.IsHex64(ev.PubKey) || !nostr.ReadHex(sig[:], ev.Sig):
		l.err = errForm
	case !nostr.HasID(ev):
		l.err = errID
	case !nostr.Signed(ev):
		l.err = errSignature
	default:
		l.ev = ev
		if !plain {
			l.raw = nostr.Encode(ev)
		}
	}
}

// How much is verified at once, in lines and bytes.
const (
	batchLines = 2048
	batchBytes = 8 << 20
)

// read takes the input into the temporary file and verifies it, on all processors.
func (m *Import) read(ctx context.Context, in io.Reader) error {
	lines := jsonl.NewReader(in)
	for done := 0; ; {
		batch, err := fill(lines)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		var all sync.WaitGroup
		processors := runtime.GOMAXPROCS(0)
		for first := range processors {
			all.Go(func() {
				for i := first; i < len(batch); i += processors {
					batch[i].verify()
				}
			})
		}
		all.Wait()
		for i := range batch {
			if err := m.take(&batch[i]); err != nil {
				return err
			}
		}
		if done += len(batch); len(batch) > 0 {
			m.Progress("lines", done, -1)
		}
		if err != nil || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// fill reads as many lines as a batch has. Its error is why there are no more.
func fill(lines *jsonl.Reader) (batch []line, err error) {
	for size := 0; len(batch) < batchLines && size < batchBytes; {
		next, err := lines.Next()
		if err != nil {
			return batch, err
		}
		batch = append(batch, line{record: record{line: int32(next.Number)}, raw: slices.Clone(next.Event), err: next.Err})
		size += len(next.Event)
	}
	return batch, nil
}

// take writes an event to the temporary file and puts it into its stage.
func (m *Import) take(l *line) error {
	r := l.record
	r.at, r.size = m.size, int32(len(l.raw))
	if _, err := m.file.Write(l.raw); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	m.size += int64(len(l.raw))
	if l.err != nil {
		r.state, r.why = invalid, "invalid: "+l.err.Error()
	}
	stage := stageOf(r.kind)
	m.stages[stage].records = append(m.stages[stage].records, &r)
	if m.Repositories != nil && l.ev != nil {
		switch stage {
		case states:
			identifier := l.ev.Tags.GetD()
			m.states[identifier] = append(m.states[identifier], &r)
		case pulls:
			m.pulls[l.ev.ID] = true
		}
	}
	return nil
}

// raw reads an event from the temporary file.
func (m *Import) raw(r *record) ([]byte, error) {
	raw := make([]byte, r.size)
	if _, err := m.file.ReadAt(raw, r.at); err != nil {
		return nil, fmt.Errorf("read a temporary file: %w", err)
	}
	return raw, nil
}
