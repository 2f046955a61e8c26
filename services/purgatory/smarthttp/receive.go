package smarthttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

const (
	// drainBytes is how much more than the largest push is read, and thrown away, so that its client sees why it was refused.
	drainBytes = 64 << 20
	// maxReport bounds what receive-pack says about maxCommands references.
	maxReport = 32 << 20
)

// push answers POST git-receive-pack. The answer is held back until the Authority is done, so that "done" on the user's terminal
// means committed.
func (x *exchange) push() {
	began := time.Now()
	result := x.takePush()
	x.metrics.operations.WithLabelValues(operationPush, result).Inc()
	x.metrics.duration.WithLabelValues(operationPush).Observe(time.Since(began).Seconds())
}

func (x *exchange) takePush() (result string) {
	unpacked, err := x.requestBody(x.options.MaxPushBytes + drainBytes)
	if err != nil {
		x.fail(err)
		return resultRefused
	}
	body := &endingReader{from: bufio.NewReaderSize(unpacked, 32<<10), ended: make(chan struct{})}
	request, err := readPush(body.from)
	if err != nil {
		x.fail(err)
		return resultRefused
	}
	stream := &responseStream{x: x, contentType: "application/x-" + receivePack + "-result"}
	if len(request.commands) == 0 {
		drain(body)
		return x.result(stream.begin())
	}
	p := &receiving{x: x, request: request, body: body}
	answer := newAnswer(request, stream)
	stop := answer.keepAlive(body.ended, x.options.KeepAlive)
	err = x.authority.Push(x.r.Context(), x.ref, request.commands, p.receive)
	whole := drain(body)
	stop()
	if !whole {
		x.w.Header().Set("Connection", "close")
	}
	x.countAuthorization(p, err)
	outcome := p.outcome(err)
	if outcome.log != nil {
		x.log.Warn("a push failed", "error", outcome.log)
	}
	if sending := answer.send(outcome); sending != nil {
		x.log.Debug("the answer to a push could not be sent", "error", sending)
		return resultGone
	}
	return outcome.result
}

func (x *exchange) countAuthorization(p *receiving, err error) {
	label := authorError
	if _, refused := errors.AsType[*Refusal](err); refused && !p.called {
		label = authorRefused
	} else if p.called {
		label = authorized
	}
	x.metrics.pushes.WithLabelValues(label).Inc()
}

// receiving is a push on its way into the repository.
type receiving struct {
	x       *exchange
	request *pushRequest
	body    *endingReader
	called  bool
	report  *packp.ReportStatus // nil until receive-pack has spoken
	said    string              // what git said beside its report
}

// notApplied is a push that git did not take; its report says why.
type notApplied struct{ reason string }

func (e *notApplied) Error() string { return "git did not apply the push: " + e.reason }

// receive runs receive-pack, and gives nil if it applied every command.
func (p *receiving) receive(ctx context.Context) error {
	if p.called {
		return errors.New("receive a push: it was received before")
	}
	p.called = true
	if err := p.x.repo.Sweep(); err != nil {
		return fmt.Errorf("receive a push: %w", err)
	}
	if err := p.checkPack(); err != nil {
		return err
	}
	out := &boundedBuffer{max: maxReport}
	c := p.x.repo.ReceivePack(false, p.x.options.MaxPushBytes)
	c.Patience = p.x.options.Patience
	c.Stdin = io.MultiReader(bytes.NewReader(p.request.encode()), netguard.LimitBody(p.body, p.x.options.MaxPushBytes))
	c.Stdout = out
	err := c.Run(ctx)
	p.said = c.Messages()
	if err != nil {
		return fmt.Errorf("receive a push: %w", err)
	}
	report := packp.NewReportStatus()
	if err := report.Decode(&out.Buffer); err != nil {
		return fmt.Errorf("receive a push: read the report of git: %w", err)
	}
	p.report = report
	return p.applied()
}

// checkPack looks at the head of the pack: git reserves memory for as many objects as it claims to have.
func (p *receiving) checkPack() error {
	if !p.request.sendsPack() {
		return nil
	}
	header, err := p.body.from.Peek(12)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("receive a push: read its pack: %w", err)
	}
	if _, err := repository.PackObjects(header); err != nil {
		return &Refusal{Reason: err.Error()}
	}
	return nil
}

// applied says whether the report tells of every command that it was carried out.
func (p *receiving) applied() error {
	if err := p.report.Error(); err != nil {
		return &notApplied{err.Error()}
	}
	done := map[string]bool{}
	for _, status := range p.report.CommandStatuses {
		done[status.ReferenceName.String()] = true
	}
	for _, command := range p.request.commands {
		if !done[command.Name] {
			return &notApplied{fmt.Sprintf("nothing is said of %q", command.Name)}
		}
	}
	return nil
}

// outcome is what the client is told, what is counted and what is logged.
type outcome struct {
	report  *packp.ReportStatus
	message string // for the user's terminal, beside the report
	result  string
	log     error
}

// outcome decides what became of a push, from what the Authority said in the end.
func (p *receiving) outcome(err error) outcome {
	refusal, refused := errors.AsType[*Refusal](err)
	_, unapplied := errors.AsType[*notApplied](err)
	switch {
	case err == nil && p.report == nil:
		return p.refused("the server did not carry out the push", "", resultError, errors.New("the push was neither refused nor received"))
	case err == nil:
		return outcome{report: p.report, message: p.said, result: resultOK}
	case refused:
		return p.refused(refusal.Reason, refusal.Reason, resultRefused, nil)
	case unapplied && p.report != nil:
		return outcome{report: p.report, message: p.said, result: resultRefused}
	case isTooLarge(err):
		reason := fmt.Sprintf("the push is larger than %d bytes", p.x.options.MaxPushBytes)
		return p.refused(reason, reason, resultRefused, nil)
	case errors.Is(err, repository.ErrBusy):
		return p.refused("too many git requests at once, try again later", "", resultBusy, nil)
	case p.x.r.Context().Err() != nil:
		return p.refused("the connection was lost", "", resultGone, nil)
	}
	return p.refused("the server could not take the push, try again later", "", resultError, err)
}

// refused makes a report in which every command fails for one reason.
func (p *receiving) refused(reason, message, result string, log error) outcome {
	return outcome{report: refusalReport(p.request.commands, reason), message: message, result: result, log: log}
}

// endingReader tells when its source has come to its end.
type endingReader struct {
	from  *bufio.Reader
	ended chan struct{}
	over  atomic.Bool
}

// Read reads from the source.
func (e *endingReader) Read(p []byte) (int, error) {
	n, err := e.from.Read(p)
	if errors.Is(err, io.EOF) && e.over.CompareAndSwap(false, true) {
		close(e.ended)
	}
	return n, err
}

// boundedBuffer keeps what is written to it, up to a bound.
type boundedBuffer struct {
	bytes.Buffer
	max int
}

// Write fails beyond the bound.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.max {
		return 0, errors.New("git says too much")
	}
	return b.Buffer.Write(p)
}

var _ http.Handler = (*handler)(nil)
