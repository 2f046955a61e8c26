package fetch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

const (
	// maxAdvertisement bounds what a server may say of its references: about a million of them.
	maxAdvertisement = 64 << 20
	// maxAnswers bounds the lines before a pack: one ACK or NAK, which some servers repeat.
	maxAnswers = 64
	// maxThinking is how long a server may prepare a pack, while it says something now and then.
	maxThinking = 10 * time.Minute
	// maxComplaint is how much is read of an answer that is an error.
	maxComplaint = 4 << 10
	// version2 is the Git-Protocol header of the version in which git gives any object that it has.
	version2 = "version=2"
)

// errSlow is the cause by which a request ends whose server sends too slowly.
var errSlow = errors.New("the server is too slow")

// server is what is known of a git server after it has introduced itself.
type server struct {
	base         string // the URL that requests go to, redirects followed
	protocol     string // version2, or "": it speaks an older one
	byID         bool   // it gives objects that it does not advertise
	advertised   map[string]bool
	references   uint64 // hash of its list of references, in an older version
	capabilities []string
}

// discover lets a server introduce itself, in a version of the protocol that it may not speak. Only
// of the missing objects it is remembered whether they are advertised.
func (f *fetching) discover(ctx context.Context, url, protocol string) (*server, error) {
	var s *server
	err := f.exchange(ctx, url+"/info/refs?service=git-upload-pack", protocol, nil, maxAdvertisement,
		func(response *http.Response, body io.Reader) (err error) {
			// A redirect that leads to anything else is none that git follows.
			final := *response.Request.URL
			service := final.Query().Get("service")
			final.RawQuery, final.Fragment = "", ""
			base, ok := strings.CutSuffix(final.String(), "/info/refs")
			if !ok || service != "git-upload-pack" {
				return notGit("it redirects to %s", repository.OneLine(response.Request.URL.String()))
			}
			s, err = readAdvertisement(body, f.missing)
			s.base = base
			return err
		})
	return s, err
}

// exchange makes one request and lets read read its answer, which must be one of git. body is what
// is sent; nil: nothing is.
func (f *fetching) exchange(ctx context.Context, url, protocol string, body []byte, max int64,
	read func(*http.Response, io.Reader) error) (err error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	p := f.limits.pace(func() { cut(errSlow) })
	f.pace = p
	defer func() {
		p.stop()
		if err != nil && errors.Is(context.Cause(ctx), errSlow) {
			err = &Error{Cause: CauseTooSlow, Err: errSlow}
		}
		if known, is := errors.AsType[*Error](err); is && known.Cause == CauseRateLimited {
			f.result.TooOften, f.result.RetryAfter = true, known.retryAfter
		}
	}()
	method, contentType := http.MethodGet, "application/x-git-upload-pack-advertisement"
	if body != nil {
		method, contentType = http.MethodPost, "application/x-git-upload-pack-result"
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return notGit("its URL cannot be asked: %w", err)
	}
	if f.limits.Agent != "" {
		request.Header.Set("User-Agent", f.limits.Agent)
	}
	if f.limits.Prover != nil {
		proof, err := f.limits.Prover.Prove(url)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Nostr "+proof)
	}
	request.Header.Set("Accept", contentType)
	if protocol != "" {
		request.Header.Set("Git-Protocol", protocol)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	}
	f.result.Requests++
	response, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := checkResponse(response, contentType); err != nil {
		return err
	}
	p.from = response.Body
	if body == nil {
		p.sends()
	}
	return read(response, netguard.LimitBody(p, max))
}

// pace is the body of an answer, whose request ends if the server is silent for too long, thinks
// for too long, or sends too slowly.
type pace struct {
	from    io.Reader
	limits  Limits
	silence *time.Timer // since the last byte
	window  *time.Timer // in which enough must come, once it sends; until then, in which it must begin
	sending bool
	came    int64 // in this window
	all     int64 // that came, words too
}

func (l Limits) pace(cut func()) *pace {
	return &pace{limits: l, silence: time.AfterFunc(l.Silence, cut),
		window: time.AfterFunc(max(maxThinking, l.window), cut)}
}

func (p *pace) stop() {
	p.silence.Stop()
	p.window.Stop()
}

// sends begins the first window: what was asked for comes from now on.
func (p *pace) sends() {
	if !p.sending {
		p.sending, p.came = true, 0
		p.window.Reset(p.limits.window)
	}
}

// Read reads some of the body. The next window begins when this one has brought its bytes.
func (p *pace) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	if n > 0 {
		p.silence.Reset(p.limits.Silence)
	}
	p.all += int64(n)
	least := p.limits.MinRate * int64(p.limits.window) / int64(time.Second)
	if p.came += int64(n); p.sending && p.came >= least {
		p.came = 0
		p.window.Reset(p.limits.window)
	}
	return n, err
}

// causes are those of answers other than 200; others have CauseServer.
var causes = map[int]Cause{
	http.StatusNotFound: CauseNotFound, http.StatusGone: CauseNotFound,
	http.StatusUnauthorized: CauseForbidden, http.StatusForbidden: CauseForbidden,
	http.StatusTooManyRequests: CauseRateLimited,
}

// tooOften is how servers say that they are asked too often, where the status does not.
var tooOften = regexp.MustCompile(`(?i)rate.?limit|too many requests|slow down|abuse detection`)

// checkResponse makes an error of every answer but the one that was hoped for.
func checkResponse(response *http.Response, contentType string) error {
	if response.StatusCode != http.StatusOK {
		cause := cmp.Or(causes[response.StatusCode], CauseServer)
		complaint, _ := io.ReadAll(io.LimitReader(response.Body, maxComplaint))
		later := retryAfter(response.Header.Get("Retry-After"), time.Now())
		if later > 0 && response.StatusCode == http.StatusServiceUnavailable || tooOften.Match(complaint) {
			cause = CauseRateLimited
		}
		return &Error{Cause: cause, Err: fmt.Errorf("it answered %s", repository.OneLine(response.Status)), retryAfter: later}
	}
	if got := response.Header.Get("Content-Type"); got != contentType {
		return notGit("it answered with the Content-Type %q", repository.OneLine(got))
	}
	return nil
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// readAdvertisement reads what a server says of itself, in any version of the protocol
// (gitprotocol-http, gitprotocol-pack, gitprotocol-v2).
func readAdvertisement(r io.Reader, missing []string) (*server, error) {
	s := &server{advertised: map[string]bool{}}
	for _, id := range missing {
		s.advertised[id] = false
	}
	lines := pktline.NewScanner(r)
	var list maphash.Hash
	list.SetSeed(seed)
	defer func() { s.references = list.Sum64() }()
	for first, greeted := true, false; lines.Scan(); {
		line, words, _ := strings.Cut(strings.TrimSuffix(string(lines.Bytes()), "\n"), "\x00")
		list.WriteString(line + "\n")
		id, _, isRef := strings.Cut(line, " ")
		switch {
		case first && line == "version 2":
			s.protocol, s.byID = version2, true
			return s, nil
		case first && (line == "# service=git-upload-pack" || line == "version 1"):
			greeted = true
			continue
		case greeted && line == "":
			greeted = false
			continue
		case line == "":
			return s, nil
		case !isRef:
			return s, notGit("a line of its advertisement is no reference")
		case first:
			s.capabilities = strings.Fields(words)
			s.byID = slices.Contains(s.capabilities, "allow-reachable-sha1-in-want") ||
				slices.Contains(s.capabilities, "allow-tip-sha1-in-want")
			if !slices.Contains(s.capabilities, "side-band-64k") {
				return s, notGit("it does not speak side-band-64k")
			}
		}
		first, greeted = false, false
		if _, is := s.advertised[id]; is {
			s.advertised[id] = true
		}
	}
	return s, badLines(lines.Err(), "its advertisement ends too soon")
}

// notGit is an answer that is not what git's protocol asks for.
func notGit(format string, args ...any) error { return failed(CauseNotGit, format, args...) }

func failed(cause Cause, format string, args ...any) error {
	return &Error{Cause: cause, Err: fmt.Errorf(format, args...)}
}

// badLines is the error of a scanner that stopped where it should not have.
func badLines(err error, otherwise string) error {
	switch spoken, ok := errors.AsType[*pktline.ErrorLine](err); {
	case ok && tooOften.MatchString(spoken.Text):
		return failed(CauseRateLimited, "it says: %s", repository.OneLine(spoken.Text))
	case ok:
		return failed(CauseServer, "it says: %s", repository.OneLine(spoken.Text))
	case err == nil, errors.Is(err, io.EOF):
		return notGit("%s", otherwise)
	case errors.Is(err, pktline.ErrInvalidPktLen):
		return notGit("it sends no pkt-lines")
	}
	return err
}

// encode writes wants, haves and "done" in one message: a fetch command of version 2, or the
// request of version 0.
func (s *server) encode(want, have []string) []byte {
	var b bytes.Buffer
	line := func(text string) { fmt.Fprintf(&b, "%04x%s\n", len(text)+5, text) }
	// Progress is asked for: a server that says nothing for long is given up.
	words, said := []string{"ofs-delta", "thin-pack"}, " side-band-64k"
	if s.protocol == version2 {
		line("command=fetch")
		b.WriteString("0001") // the packet between the parts of a command
		said = ""
	}
	for _, word := range words {
		if s.protocol == version2 {
			line(word)
		} else if slices.Contains(s.capabilities, word) {
			said += " " + word
		}
	}
	for _, id := range want {
		line("want " + id + said)
		said = ""
	}
	if s.protocol == "" {
		b.WriteString("0000")
	}
	for _, id := range have {
		line("have " + id)
	}
	line("done")
	if s.protocol == version2 {
		b.WriteString("0000")
	}
	return b.Bytes()
}

// request asks for objects and stores the pack that comes, if it has something of what is missing.
// The pack is read in whole before git sees it, so that no process waits for a slow server.
func (f *fetching) request(ctx context.Context, s *server, ask []string) error {
	pack := f.into.Store.Spool(f.limits.Party, nil)
	defer pack.Close()
	err := f.exchange(ctx, s.base+"/git-upload-pack", s.protocol, s.encode(ask, f.haves), f.left,
		func(_ *http.Response, body io.Reader) error {
			content, err := openPack(bufio.NewReaderSize(body, 64<<10), f.pace.sends)
			if err == nil {
				_, err = io.Copy(&paid{pack, f.limits.Account}, content)
			}
			return err
		})
	f.left = max(0, f.left-f.pace.all) // a server may talk instead of sending
	f.result.Bytes += pack.Size()
	if err != nil {
		return err
	}
	before, err := f.into.Bytes()
	if err != nil {
		return err
	}
	if err := f.into.Take(ctx, pack, f.missing); err != nil {
		return err
	}
	// A pack may be completed by objects that are here, and be larger then than what came.
	after, err := f.into.Bytes()
	if grown := after - before - pack.Size(); err == nil && grown > 0 && f.limits.Account != nil {
		_ = f.limits.Account.Take(grown) // it is here by now: the next fetch is refused
	}
	return err
}

// paid writes what is paid for.
type paid struct {
	to      io.Writer
	account Account
}

// Write pays before it writes.
func (p *paid) Write(b []byte) (int, error) {
	if p.account != nil {
		if err := p.account.Take(int64(len(b))); err != nil {
			return 0, err
		}
	}
	return p.to.Write(b)
}

// openPack reads the server's ACK or NAK, or the name of the section, and gives the pack behind it.
func openPack(r *bufio.Reader, sends func()) (io.Reader, error) {
	for range maxAnswers {
		head, err := r.Peek(5)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if len(head) == 5 && head[4] <= byte(sideband.ErrorMessage) {
			return &packReader{from: sideband.NewDemuxer(sideband.Sideband64k, r), sends: sends}, nil
		}
		lines := pktline.NewScanner(r)
		if !lines.Scan() || len(lines.Bytes()) == 0 {
			return nil, refusal(lines.Err())
		}
		// The lines before a pack are those of version 0, and the name of the section in version 2.
		if line := string(lines.Bytes()); !strings.HasPrefix(line, "NAK") && !strings.HasPrefix(line, "ACK") &&
			line != "packfile\n" {
			return nil, notGit("its answer to what is wanted is no ACK or NAK")
		}
	}
	return nil, notGit("it sends ACK and NAK without end")
}

// named finds the object in the words of git, and of JGit.
var named = regexp.MustCompile(`(?:not our ref|want) ?([0-9a-f]{40})`)

// refusal understands a server that ended the conversation. What it says, or hangs up over, is most
// often an object that it does not give.
func refusal(err error) error {
	if err == nil {
		return failed(CauseNoSuchObject, "it answers nothing")
	}
	spoken, is := errors.AsType[*pktline.ErrorLine](err)
	err = badLines(err, "its answer to what is wanted ends too soon")
	if !is || Classify(err) == CauseRateLimited {
		return err
	}
	refused := &Error{Cause: CauseNoSuchObject, Err: err}
	if found := named.FindStringSubmatch(spoken.Text); found != nil {
		refused.refused = found[1]
	}
	return refused
}

// packReader is a pack without its wrapping.
type packReader struct {
	from  io.Reader
	sends func() // is called when something of the pack has come
	begun bool
}

// Read reads some of the pack. The demuxer gives a server's last words, of any length, as an error
// without a type.
func (p *packReader) Read(b []byte) (int, error) {
	if !p.begun && len(b) > 0 {
		b = b[:1] // the demuxer waits until it has filled what it is given
	}
	n, err := p.from.Read(b)
	if n > 0 && !p.begun {
		p.begun = true
		p.sends()
	}
	if err != nil && !errors.Is(err, io.EOF) && Classify(err) == CauseOurs {
		err = failed(CauseServer, "the pack breaks off: %s", repository.OneLine(err.Error()))
	}
	return n, err
}
