package githttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"tendril.dev/services/purgatory/repository"
)

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"

	// maxNegotiation bounds the wants and haves of one request of a fetch: of a repository with
	// 100,000 references they are 5 MB.
	maxNegotiation = 16 << 20
	// fetchTime bounds how long git may work on one answer.
	fetchTime = 6 * time.Hour
)

// serveHead answers with the HEAD file, which some clients read to know that there is a repository.
func (x *exchange) serveHead() {
	branch, err := x.shown.Head()
	if err != nil && !x.shown.Exists() {
		if err = x.find(); err == nil {
			branch, err = x.shown.Head()
		}
	}
	if err == nil && branch == "" {
		err = errors.New("HEAD follows no branch")
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(x.w, "ref: %s\n", branch)
}

// noRefs is how newer versions of git advertise what they can do where there is no reference yet.
// Before 2.41, upload-pack only sends a flush, from which a client cannot learn that it may ask for
// objects by id.
const noRefs = ZeroID + " capabilities^{}\x00multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not " +
	"deepen-relative no-progress include-tag multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done filter " +
	"object-format=sha1 agent=git/tendril\n"

func pktLine(payload string) string { return fmt.Sprintf("%04x%s", len(payload)+4, payload) }

// advertise answers GET info/refs: what there is to fetch, or to push to.
func (x *exchange) advertise(service string) {
	protocol := gitProtocol(x.r.Header.Get("Git-Protocol"))
	out := &answer{x: x, contentType: "application/x-" + service + "-advertisement", preamble: pktLine("# service="+service+"\n") + "0000"}
	var command func() *repository.Command
	switch service {
	case uploadPack:
		command = func() *repository.Command { return x.shown.UploadPack(true, protocol) }
		if protocol == "version=2" {
			out.preamble = ""
		}
	case receivePack: // knows no version 2
		command = func() *repository.Command { return x.shown.ReceivePack(true, x.MaxPushBytes) }
	case "":
		http.Error(x.w, "the dumb HTTP protocol is not served: use a git client that speaks smart HTTP", http.StatusForbidden)
		return
	default:
		http.Error(x.w, "this service is not served: ask for git-upload-pack or git-receive-pack", http.StatusForbidden)
		return
	}
	if x.r.Method == http.MethodHead {
		x.w.Header().Set("Content-Type", out.contentType)
		return
	}
	began := time.Now()
	if has, err := x.shown.HasObjects(); service == uploadPack && protocol != "version=2" && err == nil && !has && x.shown.Exists() {
		if protocol == "version=1" {
			out.preamble += pktLine("version 1")
		}
		_, err := out.Write([]byte(pktLine(noRefs) + "0000"))
		x.count(operationRefs, began, err)
		return
	}
	x.count(operationRefs, began, x.stream(command, out, nil))
}

// fetch answers POST git-upload-pack. Git begins when the whole request is here.
func (x *exchange) fetch() {
	began := time.Now()
	request, end := x.spool(func() error { return nil })
	defer end()
	body, err := x.requestBody(maxNegotiation)
	if err == nil {
		_, err = io.Copy(request, fromClient{body})
	}
	if err != nil {
		x.fail(err)
		x.count(operationFetch, began, err)
		return
	}
	packs := false
	err = x.stream(func() *repository.Command {
		c := x.shown.UploadPack(false, gitProtocol(x.r.Header.Get("Git-Protocol")))
		c.Stdin = request.Reader()
		return c
	}, &answer{x: x, contentType: "application/x-" + uploadPack + "-result"}, func(part []byte) {
		packs = packs || bytes.Contains(part, packHeader)
	})
	x.count(operationFetch, began, err)
	if !packs {
		return // a step of the negotiation, or a list of references
	}
	user := userClones
	if hasSomething(request.Reader()) {
		user = userFetches
	}
	x.count(user, began, err)
}

// packHeader begins a pack.
var packHeader = []byte("PACK\x00\x00\x00\x02")

// hasSomething reports whether who sends the lines of a fetch has a part of the history already.
func hasSomething(request io.Reader) bool {
	lines := bufio.NewReader(request)
	for {
		head, err := lines.Peek(9)
		if err != nil {
			return false
		}
		if begins := string(head[4:]); begins == "have " || begins == "shall" {
			return true
		}
		length, err := strconv.ParseUint(string(head[:4]), 16, 16)
		if err != nil {
			return false
		}
		if _, err := lines.Discard(max(4, int(length))); err != nil {
			return false
		}
	}
}

// isProtocolError reports whether git gave up because of what the client said, not of what we have.
func isProtocolError(err error) bool {
	failed, ok := errors.AsType[*repository.Error](err)
	return ok && strings.HasPrefix(failed.Messages, "fatal: protocol error")
}

// stream runs a git command whose output is the answer, and shows it to see, if that is set. If the
// repository was removed after it had been found, the answer is that of one that is not there.
func (x *exchange) stream(command func() *repository.Command, out *answer, see func(part []byte)) error {
	err := x.pass(command(), out, see)
	if err != nil && !out.begun && x.r.Context().Err() == nil && !x.shown.Exists() {
		if err = x.find(); err == nil {
			err = x.pass(command(), out, see)
		}
	}
	if err != nil && !out.begun {
		x.fail(err)
	}
	return err
}

// pass passes on what git prints, at the pace of the client and not of git.
func (x *exchange) pass(c *repository.Command, out *answer, see func(part []byte)) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	between := newBuffer(x.repo.Store().Scratch, &room{disk: x.disk, client: x.client})
	c.Stdout, c.Client, c.Patience = between, x.client, x.Patience
	if c.Time == 0 {
		c.Time = fetchTime
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
	for part := make([]byte, chunk); ; {
		n, err := between.Read(part)
		if n > 0 {
			if see != nil {
				see(part[:n])
			}
			if _, err := out.Write(part[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return out.begin()
		}
		if err != nil {
			return err
		}
	}
}

// count counts a request and how it ended.
func (x *exchange) count(operation string, began time.Time, err error) {
	result := resultOK
	if err != nil {
		result = x.understand(err).result
		x.log.Debug("a git request failed", "operation", operation, "result", result, "error", err)
	}
	x.Metrics.operation(operation, result, time.Since(began))
}

// gitProtocol reads the Git-Protocol header, "version=2" for example, and gives what of it git is
// to know. What else stands there, a list of keys that we do not know, is left out.
func gitProtocol(header string) string {
	for part := range strings.SplitSeq(header, ":") {
		if part == "version=1" || part == "version=2" {
			return part
		}
	}
	return ""
}
