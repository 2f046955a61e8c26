package smarthttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/spool"
)

const (
	// drainBytes is how much more than the largest push is read, and thrown away, so that its
	// client sees why it was refused.
	drainBytes = 64 << 20
	// maxReport bounds what receive-pack says about maxCommands references.
	maxReport = 32 << 20
)

// push answers POST git-receive-pack. The answer is held back until the Authority is done, so that
// "done" on the user's terminal means committed.
func (x *exchange) push() {
	began := time.Now()
	result := x.takePush()
	x.metrics.operation(operationPush, result, time.Since(began))
	if x.pushes {
		x.metrics.operation(userPushes, result, time.Since(began))
	}
}

func (x *exchange) takePush() (result string) {
	unpacked, err := x.requestBody(x.options.MaxPushBytes + drainBytes)
	if err != nil {
		x.fail(err)
		return x.result(err)
	}
	body := bufio.NewReaderSize(unpacked, 32<<10)
	var spoken bytes.Buffer
	request, err := readPush(io.TeeReader(body, &spoken))
	if err != nil {
		x.fail(err)
		return x.result(err)
	}
	stream := &responseStream{x: x, contentType: "application/x-" + receivePack + "-result"}
	if len(request.commands) == 0 {
		drain(body)
		return x.result(stream.begin())
	}
	x.pushes = true
	answer := newAnswer(request, stream)
	p := &receiving{x: x, request: request, spoken: spoken.Bytes()}
	err = p.carryOut(body, answer)
	drain(body)
	if p.passedOn {
		return x.movedResult(err)
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

// movedResult is what became of a push that another worker has answered.
func (x *exchange) movedResult(err error) string {
	if err == nil {
		return resultMoved
	}
	x.log.Debug("the answer of another worker to a push could not be passed on", "error", err)
	if x.r.Context().Err() != nil {
		return resultGone
	}
	return resultError
}

func (x *exchange) countAuthorization(p *receiving, err error) {
	label := authorError
	if _, refused := errors.AsType[*Refusal](err); refused && !p.allowed {
		label = authorRefused
	} else if p.allowed {
		label = authorized
	}
	x.metrics.pushes.WithLabelValues(label).Inc()
}

// receiving is a push on its way into the repository.
type receiving struct {
	x       *exchange
	request *pushRequest
	spoken  []byte // the request as it came, up to its pack
	pack    io.Reader
	arrived *spool.Spool        // the pack; nil if none was sent
	allowed bool                // the Authority wants it received
	called  bool                // it has been received, or that has failed
	report  *packp.ReportStatus // nil until receive-pack has spoken
	said    string              // what git said beside its report
	// passedOn is true if another worker has answered, and its answer went to the client.
	passedOn bool
}

// carryOut reads the pack and lets the Authority decide. While that takes its time the client,
// which has sent everything by then, is kept alive.
func (p *receiving) carryOut(body io.Reader, answer *answer) error {
	ctx := p.x.r.Context()
	asked := PushRequest{Ref: p.x.ref, Commands: p.request.commands, Client: p.x.client()}
	arrived, end := p.x.spool(func() error {
		err := p.x.authority.Authorize(ctx, asked)
		p.allowed = err == nil
		return err
	})
	defer end()
	if err := p.readPack(body, arrived); err != nil {
		return err
	}
	asked.PackBytes = arrived.Size()
	others, err := func() (*http.Response, error) {
		defer answer.keepAlive(p.x.options.KeepAlive)()
		p.allowed = false
		return p.decide(ctx, asked, arrived)
	}()
	if others == nil {
		return err
	}
	defer others.Body.Close()
	p.passedOn = true
	_, err = io.Copy(answer.out, others.Body)
	return err
}

// readPack reads the pack, if one follows.
func (p *receiving) readPack(body io.Reader, into *spool.Spool) error {
	if !p.request.sendsPack() {
		drain(body) // an answer may begin from here on
		p.pack = strings.NewReader("")
		return nil
	}
	if _, err := io.Copy(into, fromClient{netguard.LimitBody(body, p.x.options.MaxPushBytes)}); err != nil {
		return err
	}
	p.arrived, p.pack = into, into.Reader()
	return nil
}

// notApplied is a push that git did not take; its report says why.
type notApplied struct{ reason string }

func (e *notApplied) Error() string { return "git did not apply the push: " + e.reason }

// receive runs receive-pack, and gives nil if it applied every command.
func (p *receiving) receive(ctx context.Context) error {
	if p.called {
		return errors.New("receive a push: it was received before")
	}
	p.allowed, p.called = true, true
	if err := p.x.repo.Sweep(); err != nil {
		return fmt.Errorf("receive a push: %w", err)
	}
	return p.receivePack(ctx)
}

// receivePack runs git receive-pack and reads its report.
func (p *receiving) receivePack(ctx context.Context) error {
	out := &boundedBuffer{max: maxReport}
	c := p.x.repo.ReceivePack(false, p.x.options.MaxPushBytes)
	c.Client, c.Patience = p.x.client(), p.x.options.Patience
	if p.arrived != nil {
		c.Pack = p.arrived.Size()
	}
	c.Stdin = io.MultiReader(bytes.NewReader(p.request.encode()), p.pack)
	c.Stdout = out
	err := c.Run(ctx)
	p.said = c.Messages()
	if err != nil {
		err = errors.Join(err, p.x.repo.SweepPushes()) // it may have been killed
	}
	if err != nil {
		return tooLong(err)
	}
	report := packp.NewReportStatus()
	if err := report.Decode(&out.Buffer); err != nil {
		return fmt.Errorf("receive a push: read the report of git: %w", err)
	}
	if unpacked := report.Error(); report.UnpackStatus != "ok" {
		failed := &repository.Error{Command: "receive-pack", Messages: report.UnpackStatus + "\n" + p.said, Err: unpacked}
		if repository.Unwritable(failed) {
			return fmt.Errorf("receive a push: %w", failed)
		}
		if strings.Contains(report.UnpackStatus, "abnormal exit") { // index-pack was ended by a limit, or is at fault
			return &Refusal{Reason: "git cannot check the pack within the limits on its memory and time: " + p.said}
		}
	}
	p.report = report
	return p.applied()
}

// tooLong is how receiving a push failed: in words for the user if git had to work for too long.
func tooLong(err error) error {
	if errors.Is(err, repository.ErrTooLong) {
		return &Refusal{Reason: "the push takes too long to check; push less at once"}
	}
	return fmt.Errorf("receive a push: %w", err)
}

// applied reports whether the report tells of every command that it was carried out.
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
	away, unavailable := errors.AsType[*Unavailable](err)
	_, unapplied := errors.AsType[*notApplied](err)
	_, cut := errors.AsType[*unreadable](err)
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
	case unavailable:
		return p.refused(away.Reason, away.Reason, resultError, away.Err)
	case errors.Is(err, repository.ErrShare):
		return p.refused(tooManyOfOne, tooManyOfOne, resultLimited, nil)
	case errors.Is(err, repository.ErrBusy):
		return p.refused(tooMany, tooMany, resultBusy, nil)
	case errors.Is(err, errSlow):
		reason := fmt.Sprintf("the push came too slowly, at less than %d bytes a second", p.x.options.MinRate)
		return p.refused(reason, reason, resultSlow, nil)
	case cut, p.x.r.Context().Err() != nil:
		return p.refused("the connection was lost", "", resultGone, nil)
	}
	if repository.Unwritable(err) {
		return p.refused(Unwritable, Unwritable, resultError, err)
	}
	return p.refused("the server could not take the push, try again later", "", resultError, err)
}

// refused makes a report in which every command fails for one reason.
func (p *receiving) refused(reason, message, result string, log error) outcome {
	return outcome{report: refusalReport(p.request.commands, reason), message: message, result: result, log: log}
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
