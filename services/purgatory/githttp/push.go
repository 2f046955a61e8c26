package githttp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"tendril.dev/lib/netguard"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// drainBytes is how much more than the largest push is read, and thrown away, so that its
	// client sees why it was refused.
	drainBytes = 64 << 20
	// lookEvery is the pause between two looks at who holds a repository that moves.
	lookEvery = 100 * time.Millisecond
	// maxOtherReason bounds what is read of another worker's refusal.
	maxOtherReason = 1 << 10
	// emptyPacket is what git itself sends to keep a connection alive: a side-band packet without
	// content.
	emptyPacket = "0005\x01"
	// moving is what a user is told when no worker has taken the repository in time.
	moving = "the repository is moving to another worker; push again in a moment"
)

// receiving is a push on its way into the repository.
type receiving struct {
	*exchange
	request  *pushRequest
	spoken   []byte // the request as it came, up to its pack
	arrived  *repository.Spool
	received bool   // the Authority allowed it
	said     string // what git said beside its report
}

// push answers POST git-receive-pack.
func (x *exchange) push() {
	x.contentType = "application/x-" + receivePack + "-result"
	p := &receiving{exchange: x}
	unpacked, err := x.requestBody(x.MaxPushBytes + drainBytes)
	var spoken bytes.Buffer
	body := bufio.NewReaderSize(unpacked, 32<<10)
	if err == nil {
		memory := x.repo.Store.RequestMemory(x.client)
		defer memory.Done()
		p.request, err = readPush(io.TeeReader(&chargedCommands{from: body, memory: memory}, &spoken))
	}
	if err != nil {
		x.end(err, "receive_pack")
		return
	}
	p.spoken = spoken.Bytes()
	if len(p.request.commands) == 0 {
		x.drain()
		x.end(x.begin(), "receive_pack")
		return
	}
	x.count(p.carryOut(body), "receive_pack", "push")
}

// carryOut reads the pack, lets the Authority decide, and answers. The answer is held back until
// the Authority is done, so that "done" on the user's terminal means committed.
func (p *receiving) carryOut(body io.Reader) (result string) {
	ctx := p.r.Context()
	asked := PushRequest{Ref: p.ref, Changes: p.request.commands, Atomic: p.request.atomic, Client: p.client}
	var answered time.Time
	p.arrived = p.repo.Store.Spool(p.client, func() error {
		if time.Since(answered) < p.Stall {
			return nil
		}
		answered = time.Now()
		return p.authority.Authorize(ctx, asked)
	})
	defer p.arrived.Close()
	var err error
	if p.request.sendsPack() {
		_, err = io.Copy(p.arrived, netguard.LimitBody(body, p.MaxPushBytes))
	}
	if errors.Is(err, netguard.ErrTooLarge) {
		err = Refuse(fmt.Sprintf("the push is larger than %d bytes", p.MaxPushBytes))
	}
	p.drain() // an answer may begin from here on
	asked.PackBytes = p.arrived.Size()
	var refused Refusals
	var others *http.Response
	if err == nil {
		refused, others, err = p.decide(ctx, asked)
	}
	if others == nil {
		return p.answer(refused, err)
	}
	defer others.Body.Close()
	if _, err := io.Copy(p, others.Body); err != nil {
		return resultGone
	}
	return resultMoved
}

// decide lets the Authority decide a push that has been read in, and keeps its client alive
// meanwhile. If the repository has moved, the push is passed on to the worker that holds it now:
// the client, which has sent everything, need not know.
func (p *receiving) decide(ctx context.Context, asked PushRequest) (refused Refusals, others *http.Response,
	err error) {
	defer p.keepAlive()()
	inTime := time.After(p.HandOver)
	for {
		refused, err := p.authority.Push(ctx, asked, p.receive)
		if !errors.Is(err, repository.ErrElsewhere) {
			return refused, nil, err
		}
		if address, held := p.Holder(p.ref.Identifier); held {
			if others, err := p.passOn(ctx, address); others != nil || err != nil {
				return nil, others, err
			}
		}
		select {
		case <-time.After(lookEvery):
		case <-inTime:
			return nil, nil, Refuse(moving)
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// keepAlive sends an empty packet from time to time until it is stopped. It is for a client that
// has sent everything and only waits: an answer that begins before the request has ended makes many
// clients and proxies stop sending.
func (p *receiving) keepAlive() (stop func()) {
	if !p.request.sideband || !p.request.report {
		return func() {}
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(p.KeepAlive):
				if _, err := io.WriteString(p, emptyPacket); err != nil {
					return
				}
			}
		}
	})
	return func() { close(done); running.Wait() }
}

// receive runs receive-pack for commands of the push (Receive).
func (p *receiving) receive(ctx context.Context, repo *repository.Locked, commands []repostate.Change) (Refusals,
	error) {
	p.received = true
	if err := repo.Sweep(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	namesPulls, pulls := false, []string(nil)
	for _, c := range commands {
		if strings.HasPrefix(c.Name, repostate.PrefixNostr) {
			if namesPulls = true; c.New != "" {
				pulls = append(pulls, c.New)
			}
		}
	}
	if len(pulls) > 0 {
		if err := p.checkPulls(ctx, repo, pulls); err != nil {
			return nil, err
		}
	}
	c := repo.ReceivePack(p.MaxPushBytes, namesPulls)
	c.Client, c.Patience, c.Pack, c.MaxFile = p.client, p.Patience, p.arrived.Size(), p.MaxPushBytes
	c.Stdin = io.MultiReader(strings.NewReader(encodeCommands(commands, p.request.atomic)), p.arrived.Reader(0))
	c.Stdout = &out
	err := c.Run(ctx)
	p.said = c.Messages()
	if err != nil {
		err = errors.Join(err, repo.Sweep()) // it may have been killed
	}
	if errors.Is(err, repository.ErrTooLong) {
		return nil, errPushTooLong
	}
	if err != nil {
		return nil, err
	}
	report := packp.NewReportStatus()
	if err := report.Decode(&out); err != nil {
		return nil, fmt.Errorf("read the report of git: %w", err)
	}
	if report.UnpackStatus != "ok" {
		return nil, p.notUnpacked(report.UnpackStatus)
	}
	refused := Refusals{}
	for _, c := range commands {
		refused[c.Name] = "git says nothing of it"
	}
	for _, status := range report.CommandStatuses {
		name := string(status.ReferenceName)
		if refused[name] = status.Status; status.Status == "ok" {
			delete(refused, name)
		}
	}
	return refused, nil
}

// errPushTooLong is told of a push that git does not check in time.
var errPushTooLong = Refuse("the push takes too long to check; push less at once")

// checkPulls refuses a push whose pack does not bring what the commits of pull requests reach. A pack
// that git refuses here is refused: receive-pack, which looks again, might take it.
func (p *receiving) checkPulls(ctx context.Context, repo *repository.Locked, commits []string) error {
	err := repo.Brings(ctx, p.arrived, p.client, p.Patience, p.MaxPushBytes, commits)
	failed, ofGit := errors.AsType[*repository.Error](err)
	switch {
	case errors.Is(err, repository.ErrTooLong):
		return errPushTooLong
	case !errors.Is(err, repository.ErrBadPack):
		return err
	case ofGit:
		p.said = failed.Messages
		return p.notUnpacked("index-pack abnormal exit")
	}
	return Refuse("no branch or tag has all that this push builds on any more: git fetch, then push again")
}

// notUnpacked is why git refuses the pack: a limit if one was reached, else what git says.
func (p *receiving) notUnpacked(status string) error {
	failed := &repository.Error{Command: "receive-pack", Messages: status + "\n" + p.said, Err: errors.New(status)}
	limit, reached := repository.LimitReached(failed)
	switch {
	case reached:
		return Refuse("git cannot check the pack within the limit on its " + limit + "; push less at once")
	case repository.Unwritable(failed):
		return failed
	case p.request.shallow && strings.Contains(p.said, "did not receive expected object"):
		return Refuse("shallow update not allowed: the history of what is pushed has no beginning here; run git fetch --unshallow, then push again")
	}
	var reasons []string
	for line := range strings.Lines(p.said) {
		line = strings.TrimSpace(line)
		if reason, is := strings.CutPrefix(line, "error: "); is {
			reasons = append(reasons, reason)
		} else if reason, is := strings.CutPrefix(line, "fatal: "); is {
			reasons = append(reasons, reason)
		}
	}
	return Refuse("git refuses the pack: " + cmp.Or(strings.Join(reasons, "; "), status))
}

// answer tells the client what became of its push: what was refused of it, or why nothing was done.
func (p *receiving) answer(refused Refusals, err error) (result string) {
	message, result := p.said, resultOK
	switch {
	case err != nil:
		f := p.understand(err)
		result, message = f.result, f.sentence
		refused = p.request.refuseAll(message)
		if f.log != nil {
			p.log.Warn("a push failed", "error", f.log)
		}
	case len(refused) > 0:
		result = resultRefused
		message = strings.TrimSpace(repostate.Reasons(refused) + "\n" + message)
		err = errors.New(repostate.Reasons(refused))
	}
	label := "error"
	if result == resultRefused {
		label = "denied"
		p.log.Info(pushRefused, "client", p.client, "reason", err)
	}
	if p.received {
		label = "allowed"
	}
	p.Metrics.pushes.WithLabelValues(label).Inc()
	if err := p.send(refused, message); err != nil {
		return resultGone
	}
	return result
}

// passing is what passes pushes on to other workers. Their addresses come from our own claims and
// lead to loopback or into the cluster, so the guarded dialer is not asked.
var passing = &http.Transport{
	DialContext:        (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	DisableCompression: true,
	DisableKeepAlives:  true,
	// A worker asks for the body when it holds the repository, and answers at once if not.
	ExpectContinueTimeout: time.Minute,
}

// passOn sends the push to another worker and returns its answer. Neither an answer nor an error:
// that worker has seen nothing of the push, and it may be sent again.
func (p *receiving) passOn(ctx context.Context, address string) (*http.Response, error) {
	var begun atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { begun.Store(true) }})
	to := &url.URL{Scheme: "http", Host: address, Path: p.r.URL.Path, RawPath: p.r.URL.EscapedPath()}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(),
		io.MultiReader(bytes.NewReader(p.spoken), p.arrived.Reader(0)))
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(len(p.spoken)) + p.arrived.Size()
	r.Header.Set("Content-Type", p.r.Header.Get("Content-Type"))
	r.Header.Set("Expect", "100-continue")
	r.Header.Set(proto.HeaderClient, p.client)
	answer, err := passing.RoundTrip(r)
	switch {
	case err != nil && !begun.Load():
		p.log.Debug("a push could not be passed on", "worker", address, "error", err)
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("pass a push on to %s: %w", address, err)
	case answer.StatusCode == http.StatusOK:
		return answer, nil
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusMisdirectedRequest {
		return nil, nil
	}
	reason, _ := io.ReadAll(io.LimitReader(answer.Body, maxOtherReason))
	result := resultRefused
	switch answer.StatusCode {
	case http.StatusServiceUnavailable:
		result = resultBusy
	case http.StatusTooManyRequests:
		result = resultLimited
	}
	return nil, &failure{result, strings.TrimSpace(string(reason)), answer.StatusCode, nil}
}
