package smarthttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/spool"
)

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"

	// maxNegotiation bounds the wants and haves of one request of a fetch: of a repository with
	// 100,000 references they are 5 MB.
	maxNegotiation = 16 << 20
	// requestMemory is how much of a request is kept in memory before it is written to disk.
	requestMemory = 256 << 10
)

// serveHead answers with the HEAD file, which some clients read to know that there is a repository.
func (x *exchange) serveHead() {
	branch, err := x.shown.Head()
	if err != nil && !x.shown.Exists() {
		if err := x.find(); err != nil {
			x.notFound(err)
			return
		}
		branch, err = x.shown.Head()
	}
	if err != nil || branch == "" {
		x.log.Warn("HEAD cannot be read", "error", err)
		http.Error(x.w, "HEAD cannot be read", http.StatusInternalServerError)
		return
	}
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(x.w, "ref: %s\n", branch)
}

// advertise answers GET info/refs: what there is to fetch, or to push to.
func (x *exchange) advertise(service string) {
	var command func() *repository.Command
	preamble := ""
	switch service {
	case uploadPack:
		protocol := gitProtocol(x.r.Header.Get("Git-Protocol"))
		command = func() *repository.Command { return x.shown.UploadPack(true, protocol) }
		if protocol != "version=2" {
			preamble = serviceLine(service)
		}
	case receivePack: // knows no version 2
		command = func() *repository.Command { return x.shown.ReceivePack(true, x.options.MaxPushBytes) }
		preamble = serviceLine(service)
	case "":
		http.Error(x.w, "the dumb HTTP protocol is not served: use a git client that speaks smart HTTP", http.StatusForbidden)
		return
	default:
		http.Error(x.w, "this service is not served: ask for git-upload-pack or git-receive-pack", http.StatusForbidden)
		return
	}
	contentType := "application/x-" + service + "-advertisement"
	if x.r.Method == http.MethodHead {
		x.w.Header().Set("Content-Type", contentType)
		return
	}
	out := &responseStream{x: x, contentType: contentType, preamble: preamble}
	if service == uploadPack {
		out.instead = emptyAdvertisements
	}
	x.stream(operationRefs, command, out)
}

// noRefs is how newer versions of git advertise what they can do where there is no reference yet.
// Before 2.41, upload-pack only sends a flush, from which a client cannot learn that it may ask for
// objects by id.
const noRefs = ZeroID + " capabilities^{}\x00multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not " +
	"deepen-relative no-progress include-tag multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done filter " +
	"object-format=sha1 agent=git/tendril\n"

// emptyAdvertisements are what stands in place of an advertisement without a line, in protocol
// versions 0 and 1.
var emptyAdvertisements = map[string]string{
	"0000":                     pktLine(noRefs) + "0000",
	"000eversion 1\n" + "0000": "000eversion 1\n" + pktLine(noRefs) + "0000",
}

func pktLine(payload string) string { return fmt.Sprintf("%04x%s", len(payload)+4, payload) }

// fetch answers POST git-upload-pack. Git begins when the whole request is here.
func (x *exchange) fetch() {
	began := time.Now()
	request, end := x.spool(func() error { return nil })
	defer end()
	if err := x.readRequest(request); err != nil {
		x.fail(err)
		x.count(operationFetch, began, err)
		return
	}
	out := &responseStream{x: x, contentType: "application/x-" + uploadPack + "-result"}
	x.stream(operationFetch, func() *repository.Command {
		x.talk = &negotiation{}
		out.also = x.talk.response()
		c := x.shown.UploadPack(false, gitProtocol(x.r.Header.Get("Git-Protocol")))
		c.Stdin = io.TeeReader(request.Reader(), x.talk.request())
		return c
	}, out)
}

// readRequest reads the wants and haves of a fetch.
func (x *exchange) readRequest(into *spool.Spool) error {
	body, err := x.requestBody(maxNegotiation)
	if err != nil {
		return err
	}
	_, err = io.Copy(into, fromClient{body})
	return err
}

// isProtocolError reports whether git gave up because of what the client said, not of what we have.
func isProtocolError(err error) bool {
	failed, ok := errors.AsType[*repository.Error](err)
	return ok && strings.HasPrefix(failed.Messages, "fatal: protocol error")
}

// stream runs a git command whose output is the answer. If the repository was removed after it had
// been found, the answer is that of one that is not there.
func (x *exchange) stream(operation string, command func() *repository.Command, out *responseStream) {
	began := time.Now()
	err := x.pass(command(), out)
	if err != nil && !out.begun && x.r.Context().Err() == nil && !x.shown.Exists() {
		if err = x.find(); err != nil {
			x.notFound(err)
			x.count(operation, began, err)
			return
		}
		err = x.pass(command(), out)
	}
	if err != nil && !out.begun {
		x.fail(err)
	}
	x.count(operation, began, err)
}

// pass passes on what git prints, at the pace of the client and not of git.
func (x *exchange) pass(c *repository.Command, out *responseStream) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	disk := &holding{room: x.disk, client: x.client()}
	between := newBuffer(x.repo.Scratch, disk)
	c.Stdout, c.Client, c.Patience = between, x.client(), x.options.Patience
	if c.Time == 0 {
		c.Time = x.options.TransferTime
	}
	var git sync.WaitGroup
	git.Go(func() {
		err := c.Run(ctx)
		if err == nil {
			err = io.EOF
		}
		between.end(err)
	})
	defer git.Wait()
	defer between.close()
	defer cancel()
	for part := make([]byte, 32<<10); ; {
		n, err := between.Read(part)
		if n > 0 {
			if _, err := out.Write(part[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return out.finish()
		}
		if err != nil {
			return err
		}
	}
}

// count counts a request and how it ended.
func (x *exchange) count(operation string, began time.Time, err error) {
	result := x.result(err)
	x.metrics.operation(operation, result, time.Since(began))
	if x.talk != nil && x.talk.user(result) != "" {
		x.metrics.operation(x.talk.user(result), result, time.Since(began))
	}
	if err != nil {
		x.log.Debug("git request failed", "operation", operation, "result", result, "error", err)
	}
}

// serviceLine is what stands before an advertisement of protocol versions 0 and 1
// (gitprotocol-http).
func serviceLine(service string) string {
	return pktLine("# service="+service+"\n") + "0000"
}

// gitProtocol reads the Git-Protocol header, "version=2" for example, and gives what of it git is
// to know. Whatever else stands there, a list of keys that we do not know, is left out.
func gitProtocol(header string) string {
	for part := range strings.SplitSeq(header, ":") {
		switch part {
		case "version=1", "version=2":
			return part
		}
	}
	return ""
}

// drain reads what the client still sends, so that it comes to read our answer. Where that does not
// come to an end, the connection is closed after the answer.
func drain(body io.Reader) { _, _ = io.Copy(io.Discard, body) }
