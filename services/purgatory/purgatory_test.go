package purgatory_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

// TestHunt: what another server has is found, released and served, and everybody who watches is
// told.
func TestHunt(t *testing.T) {
	w := newWorld(t)
	c1, url := published(t)
	ann, st := announcement("announcement", alice, "my repo/ü", "http://127.0.0.1:1/gone.git", url), state("state", alice, "my repo/ü", 1001, c1)
	w.in.syncs("my repo/ü", ann, st)
	w.released(ann)
	w.released(st)
	clone := filepath.Join(t.TempDir(), "clone")
	gittest.Git(t, "", "clone", "--quiet", w.address(alice, "my repo/ü"), clone)
	if head := gittest.Git(t, clone, "rev-parse", "HEAD"); head != c1 {
		t.Errorf("cloned %s, want %s", head, c1)
	}
	for _, prefix := range []string{"my repo/ü failed", "my repo/ü fetched", "my repo/ü released 30617", "my repo/ü released 30618"} {
		w.told.await(prefix)
	}
	eventually(t, "the hunt is over", func() bool { return w.metric("purgatory_sync_queue_size")+w.metric("purgatory_held") == 0 })
	for _, m := range []struct {
		name  string
		label []string
		want  float64
	}{
		{"purgatory_released_total", []string{"30617"}, 1}, {"purgatory_released_total", []string{"30618"}, 1},
		{"purgatory_sync_attempts_total", []string{"ok"}, 1}, {"purgatory_sync_oids_fetched_total", nil, 1}, {"purgatory_wait_seconds", nil, 2},
		{"purgatory_shards_held", nil, proto.Shards}, {"purgatory_domain_requests_total", []string{"127.0.0.1"}, 2},
	} {
		if got := w.metric(m.name, m.label...); got != m.want {
			t.Errorf("%s%v is %v, want %v", m.name, m.label, got, m.want)
		}
	}
}

// TestARewrittenEntryIsNoNewEvent: an entry whose clock is started again, or that is written again
// with another source, does not begin the hunt again. A failed fetch is a warning with its reason.
func TestARewrittenEntryIsNoNewEvent(t *testing.T) {
	t.Parallel()
	w := newWorldBy(t, func(c *purgatory.Constants) { c.BackOff, c.MostBackOff = time.Hour, time.Hour })
	gone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(gone.Close)
	nowhere := strings.Repeat("1", 40)
	hold := func(identifier string, source proto.Source, at nostr.Timestamp) {
		w.in.holds(identifier, announcement("announcement", alice, identifier, gone.URL+"/"+identifier), source, time.Hour)
		w.in.holds(identifier, state("state", alice, identifier, at, nowhere), source, time.Hour)
	}
	tries := func() float64 { return w.metric("purgatory_domain_requests_total", "127.0.0.1") }
	hold("x", proto.SourceLive, 1001)
	eventually(t, "the server is asked", func() bool { return tries() == 1 })
	for range 3 {
		hold("x", proto.SourceLive, 1001)
		hold("x", proto.SourceUser, 1001)
	}
	hold("y", proto.SourceLive, 1001)
	eventually(t, "another identifier is hunted", func() bool { return tries() >= 2 })
	if n := w.told.count("x failed"); n != 1 {
		t.Errorf("x was asked for %d times", n)
	}
	hold("x", proto.SourceLive, 1002) // a new event
	eventually(t, "it is hunted for what is new", func() bool { return w.told.count("x failed") == 2 })
	logs, err := os.ReadFile(w.git + ".log")
	warning := `level=WARN msg="fetch failed" service=purgatory identifier=x url=` + gone.URL + `/x reason="it answered 404 Not Found" attempt=1 again_in=1h0m0s`
	if err != nil || !strings.Contains(string(logs), warning) || strings.Count(string(logs), `WARN msg="fetch failed"`) != 1 {
		t.Errorf("the log does not say once %s (%v):\n%s", warning, err, logs)
	}
}

// TestPush: refused with the reason on the terminal while nothing allows it; then what it satisfies
// is served when it returns. Ingest has the last word: references do not stay where a refused state
// put them.
func TestPush(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", gittest.Noise(100<<10)) // of which the beginning is authorised too
	w.refuses("not found", alice, "x", "main")
	if n := w.asked.walks.Load(); n > 0 {
		t.Errorf("a request for what is not here reads %d times what anybody has announced", n)
	}
	ann := announcement("announcement", alice, "x")
	w.in.waits("x", ann)
	w.refuses("no state event for this repository", alice, "x", "main")
	w.told.await("x refused")
	st := w.pushState(alice, "x", 1001, c1)
	if w.in.times(ann.ID) != 1 || w.in.times(st.ID) != 1 {
		t.Error("the push returned before what it satisfied was accepted")
	}
	w.told.await("x pushed")
	asked := w.in.requests()
	if asked["extend announcement"] < 2 || asked["extend state 1001"] != 2 {
		t.Errorf("the clocks of what the push used: %v", asked)
	}
	next := state("next", alice, "x", 1002, w.work.Commit("a", "2"))
	w.in.set(func() { w.in.refuse[next.ID] = true })
	w.in.waits("x", next)
	w.refuses("is no longer pending", alice, "x", "main")
	w.isAt(alice, "x", c1)
	var many []string
	for n := range 500 {
		many = append(many, fmt.Sprintf("main:refs/nostr/%064x", n))
	}
	before := w.asked.looks.Load()
	w.refuses("may wait for their events", alice, "x", many...)
	if n := w.asked.looks.Load() - before; n > 100 {
		t.Errorf("for a push of %d unknown events %d are looked for", len(many), n)
	}
}

// TestPushedCommitWaitsForItsPullRequest, which is then released at once. What an event that comes
// names otherwise goes.
func TestPushedCommitWaitsForItsPullRequest(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.announced(alice, "x")
	pr, wrong := pull("pull", bob, c1, alice, "x"), pull("wrong", bob, strings.Repeat("d", 40), alice, "x")
	w.pushes(alice, "x", "main:refs/nostr/"+pr.ID, "main:refs/nostr/"+wrong.ID)
	w.in.waits("x", pr, wrong)
	w.released(pr)
	eventually(t, "what does not match is gone", func() bool { return w.ref(alice, "x", "refs/nostr/"+wrong.ID) == "" })
}

// TestExpiry in two phases: the empty repository goes with the first, a state event revives it, and
// the end is told once, however often it is due.
func TestExpiry(t *testing.T) {
	w := newWorld(t)
	ann, pr := announcement("announcement", alice, "x"), pull("pull", bob, strings.Repeat("d", 40), alice, "x")
	w.in.waits("x", ann, pr)
	eventually(t, "a repository is there to push to", func() bool { return w.repo(alice, "x").Exists() })
	w.in.holds("x", ann, proto.SourceUser, time.Millisecond)
	w.in.holds("x", pr, proto.SourceUser, time.Millisecond)
	eventually(t, "the empty repository is removed", func() bool { return !w.repo(alice, "x").Exists() })
	w.told.await("x expired 30617")
	w.told.await("x expired 1618")
	// Revived, as ingest does it when a state comes.
	w.in.waits("x", ann)
	eventually(t, "the repository is made again", func() bool { return w.repo(alice, "x").Exists() })
	key, err := proto.HeldKey("x", ann)
	must(t, err)
	w.in.set(func() { w.in.drop(key) })
	eventually(t, "the repository of what was deleted is removed", func() bool { return !w.repo(alice, "x").Exists() })
	if n := w.metric("purgatory_expired_total"); n != 2 {
		t.Errorf("%v events counted as expired, want 2", n)
	}
	if n := w.told.count("x expired"); n != 2 {
		t.Errorf("told %d times, want 2", n)
	}
}

// TestOverdueAtTheStart: what was overdue when the worker started is hunted once before it expires.
func TestOverdueAtTheStart(t *testing.T) {
	w := newWorld(t)
	w.stop()
	c1, url := published(t)
	ann, st := announcement("announcement", alice, "x", url), state("state", alice, "x", 1001, c1)
	lost := announcement("lost", bob, "lost", url+"nowhere")
	other := state("other", bob, "lost", 1001, strings.Repeat("1", 40))
	for _, ev := range []*nostr.Event{ann, st, lost, other} {
		w.in.holds(ev.Tags.GetD(), ev, proto.SourceUser, -time.Hour)
	}
	run(t, "two", open(t, "two", w.git, w.url, nil), func(c *purgatory.Constants) {
		c.BackOff, c.MostBackOff = time.Nanosecond, time.Nanosecond // the next attempt is always due
	})
	w.released(ann)
	w.released(st)
	w.told.await("lost failed")
	w.told.await("lost expired 30617")
	w.told.await("lost expired 30618")
	if n := w.told.count("x expired"); n != 0 {
		t.Errorf("%d events that were to be found have expired", n)
	}
}

// TestAPlaceholderIsNoData: a stranger's commit, pushed for an unknown event, does not
// release a held announcement, and is gone with the repository when the time of both is over.
func TestAPlaceholderIsNoData(t *testing.T) {
	w := newWorld(t, "--purgatory-hold=2s")
	w.work.Commit("a", "1")
	ann := announcement("announcement", alice, "x")
	w.in.waits("x", ann)
	id := strings.Repeat("e", 64)
	w.pushes(alice, "x", "main:refs/nostr/"+id)
	eventually(t, "the placeholder is gone", func() bool { return w.ref(alice, "x", "refs/nostr/"+id) == "" })
	if n := w.in.times(ann.ID); n != 0 {
		t.Error("the announcement is released by a placeholder")
	}
	if n := w.in.requests()["extend announcement"]; n > 0 {
		t.Errorf("a placeholder restarted the announcement's clock %d times", n)
	}
	w.pushes(alice, "x", "main:refs/nostr/"+id)
	w.in.holds("x", ann, proto.SourceUser, time.Millisecond)
	eventually(t, "the repository is removed with what the placeholder brought", func() bool { return !w.repo(alice, "x").Exists() })
}

// TestWhatHappenedMeanwhile: repositories without an announcement, pushed commits whose time is
// over, and what a killed push left, which may be as large as a push may be, go at the start.
func TestWhatHappenedMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.work.Commit("a", "1")
	w.announced(alice, "x")
	id := strings.Repeat("e", 64)
	w.pushes(alice, "x", "main:refs/nostr/"+id)
	w.stop()
	past, path := time.Now().Add(-2*time.Hour), w.repo(alice, "x").Path
	left := filepath.Join(path, "objects", "tmp_objdir-incoming-1")
	err := errors.Join(os.Chtimes(filepath.Join(path, "refs/nostr", id), past, past), os.Mkdir(left, 0o755))
	gittest.Do(t, w.repo(bob, "empty"), func(repo *repository.Locked) error { return repo.Ensure(t.Context()) })
	must(t, err)
	w.restart()
	eventually(t, "the commit without an event is removed", func() bool { return w.ref(alice, "x", "refs/nostr/"+id) == "" })
	eventually(t, "the empty repository is removed", func() bool { return !w.repo(bob, "empty").Exists() })
	eventually(t, "what was left is gone", func() bool { _, err := os.Lstat(left); return os.IsNotExist(err) })
}

// TestHandOverWhileIngestIsSlow: what only waits for a release does not keep shards from moving.
func TestHandOverWhileIngestIsSlow(t *testing.T) {
	w := newWorld(t)
	pause := make(chan struct{})
	defer close(pause)
	w.in.set(func() { w.in.pause = pause })
	c1, url := published(t)
	for n := range 4 {
		identifier := fmt.Sprint("slow", n)
		w.in.syncs(identifier, announcement("announcement", alice, identifier, url), state("state", alice, identifier, 1001, c1))
	}
	eventually(t, "releases wait for ingest", func() bool {
		stream, err := w.Bus.JS.Stream(t.Context(), proto.StreamRelease)
		return err == nil && stream.CachedInfo().State.Msgs > 2
	})
	start(t, "two", w.git, w.url).holds(t, 33) // all that fall to a worker of that name
}

// TestAPushIsRefusedWhereIngestDecidesNothing, as with a NATS server whose disk is full.
func TestAPushIsRefusedWhereIngestDecidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorldBy(t, func(c *purgatory.Constants) { c.Answer = 10 * time.Millisecond })
	pause := make(chan struct{})
	defer close(pause)
	w.in.set(func() { w.in.pause = pause })
	w.announced(alice, "x")
	w.in.waits("x", state("state", alice, "x", 1001, w.work.Commit("a", "1")))
	w.refuses(githttp.Unwritable, alice, "x", "main")
	w.isAt(alice, "x", "")
}

// TestStopDuringAPush: the push that is under way is released and answered, then the worker ends.
func TestStopDuringAPush(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.announced(alice, "x")
	st := state("state", alice, "x", 1001, c1)
	w.in.waits("x", st)
	pause := make(chan struct{})
	w.in.set(func() { w.in.pause = pause })
	pushed := make(chan string, 1)
	go func() {
		out, err := w.push(alice, "x", "main")
		pushed <- fmt.Sprintf("%v %s", err, out)
	}()
	eventually(t, "the push waits for ingest", func() bool {
		stream, err := w.Bus.JS.Stream(t.Context(), proto.StreamRelease)
		return err == nil && stream.CachedInfo().State.Msgs > 0
	})
	stopped := make(chan struct{})
	go func() {
		w.stop()
		close(stopped)
	}()
	eventually(t, "the worker holds the shard of the push and no other", func() bool { return w.metric("purgatory_shards_held") == 1 })
	close(pause)
	if out := <-pushed; !strings.HasPrefix(out, "<nil>") {
		t.Errorf("the push that was under way: %s", out)
	}
	<-stopped
	if w.in.times(st.ID) != 1 || w.ref(alice, "x", mainBranch) != c1 {
		t.Error("the push was not carried out")
	}
}

// TestStopDuringAFetch: a server that never answers does not keep the worker from ending, and is
// not blamed for it.
func TestStopDuringAFetch(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(asked) })
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	w.in.syncs("x", announcement("announcement", alice, "x", server.URL+"/x.git"), state("state", alice, "x", 1001, strings.Repeat("d", 40)))
	<-asked
	eventually(t, "the request is counted", func() bool { return w.metric("purgatory_domain_in_flight") == 1 })
	w.stop()
	if n := w.metric("purgatory_sync_attempts_total"); n > 0 {
		t.Errorf("%v fetches are counted, and the only one was cut off by the stop", n)
	}
	if n := w.told.count("x failed"); n != 0 {
		t.Errorf("told of %d failed fetches", n)
	}
}

// TestFetchedBytesCountForTheirAuthor: what a server gives for an author's events is stored up to
// the budget of that author, for all identifiers together, and takes nothing from others.
func TestFetchedBytesCountForTheirAuthor(t *testing.T) {
	w := newWorld(t, "--daily-author-git-bytes=250KiB")
	root := t.TempDir()
	commit := w.work.Commit("noise", gittest.Noise(500 << 10)[300<<10:])
	w.work.Publish(root, "x.git")
	server := gittest.Backend(t, root)
	hold := func(owner, identifier string) (release func()) {
		ann := announcement(owner[:2]+identifier, owner, identifier, server.URL+"/x.git")
		w.in.syncs(identifier, ann, state("state", owner, identifier, 1001, commit))
		return func() { w.released(ann) }
	}
	hold(alice, "first")()
	hold(alice, "second")
	w.told.await("second failed")
	hold(bob, "third")()
	if w.repo(alice, "second").Exists() && w.ref(alice, "second", mainBranch) != "" {
		t.Error("an author stores more than the budget of a day")
	}
	if w.told.count("second fetched") != 0 {
		t.Error("what is over the budget was fetched")
	}
}

// TestPushedBytesCount for the author and for the client's address, before anything is stored. The
// owner of a served repository has ten times the budget.
func TestPushedBytesCount(t *testing.T) {
	w := newWorld(t, "--daily-author-git-bytes=100KiB", "--daily-address-git-bytes=3MiB")
	w.pushFirst()
	for n := range 3 { // more than 100 KiB in all
		w.pushState(alice, "x", nostr.Timestamp(1002+n), w.work.Commit("noise", gittest.Noise(60 << 10 * (n + 1))[60<<10*n:]))
	}
	pr := pull("pull", bob, w.work.Commit("noise", gittest.Noise(500 << 10)[300<<10:]), alice, "x")
	w.in.waits("x", pr)
	w.refuses("rate-limited: as much git data of "+npub(bob), alice, "x", "main:refs/nostr/"+pr.ID)
	unknown := func(n int) string { return fmt.Sprintf("main~1:refs/nostr/%064x", n) }
	w.pushes(alice, "x", unknown(1))
	w.pushes(alice, "x", unknown(2))
	w.refuses("rate-limited: as much git data of your address", alice, "x", unknown(3))
}

// TestGitFolderThatCannotBeWritten is told by /readyz and to who pushes, who must not believe that
// the announcement is gone.
func TestGitFolderThatCannotBeWritten(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	// What keeps root out, too: where repositories are made there is no folder any more.
	workshop := filepath.Join(w.git, ".new")
	must(t, os.RemoveAll(workshop), os.WriteFile(workshop, nil, 0o600))
	why := "nothing can be written to the git folder (NGIT_GIT_DATA_PATH): not a directory"
	eventually(t, "/readyz says why", func() bool { return w.Ready.Troubles()["git folder"] == why })
	w.in.waits("x", announcement("announcement", alice, "x"), state("state", alice, "x", 1001, c1))
	w.refuses("remote: "+githttp.Unwritable, alice, "x", "main")
	must(t, os.Remove(workshop), os.Mkdir(workshop, 0o755))
	eventually(t, "it is seen that the folder can be written to again", func() bool { return w.Ready.Troubles()["git folder"] == "" })
	w.pushes(alice, "x", "main")
}

// TestReadyOnceEveryRepositoryHasAWorker: once a worker is ready, every repository can be cloned
// and pushed to.
func TestReadyOnceEveryRepositoryHasAWorker(t *testing.T) {
	t.Parallel()
	n := open(t, "one", filepath.Join(t.TempDir(), "git"), "", nil)
	workers, err := n.Bus.Bucket(t.Context(), proto.BucketWorkers)
	must(t, err)
	idle := proto.ClaimKey(proto.GroupShards, "idle")
	record := `{"name":"idle","address":"127.0.0.1:1","working":true}`
	if _, err := workers.Create(t.Context(), idle, []byte(record)); err != nil {
		t.Fatal(err)
	}
	w := run(t, "one", n)
	if n := w.metric("purgatory_shards_held"); n == proto.Shards {
		t.Fatal("nothing is left to the other worker")
	}
	eventually(t, "it says that another worker's share has no holder", func() bool {
		return w.Ready.Failing()["purgatory"] == "the workers have not shared out the repositories yet"
	})
	must(t, workers.Delete(t.Context(), idle))
	eventually(t, "it is ready", func() bool { return w.Ready.Failing()["purgatory"] == "" })
	if n := w.metric("purgatory_shards_held"); n != proto.Shards {
		t.Errorf("ready with %v shards", n)
	}
}

// TestACrowdAddsNothingToAPush: with all that strangers announce and send for the owner's
// identifier, the owner's push starts as many git processes in the owner's repository as before,
// and asks ingest as often.
func TestACrowdAddsNothingToAPush(t *testing.T) {
	program, processes := counted(t, alice)
	w := newWorldBy(t, func(c *purgatory.Constants) {
		c.Git, c.BackOff, c.MostBackOff = program, time.Hour, time.Hour
	})
	w.pushFirst()
	quiet := func() {
		last, since := -1, time.Now()
		eventually(t, "nothing is under way", func() bool {
			if n := processes(); n != last {
				last, since = n, time.Now()
			}
			return time.Since(since) > time.Second
		})
	}
	stranger := func(row, n int) string { return fmt.Sprintf("%032x%032x", row+1, n+1) }
	push := func(at nostr.Timestamp) (steps [2]int) {
		t.Helper()
		st := state("state", alice, "x", at, w.work.Commit("a", fmt.Sprint(at)))
		w.in.waits("x", st)
		quiet()
		before := processes()
		w.pushes(alice, "x", "main")
		return [2]int{processes() - before, w.in.times(st.ID)}
	}
	at := nostr.Timestamp(1002)
	alone := push(at)
	for range 2 { // a look that follows a push may begin before its client has ended
		at++
		if again := push(at); again[0] > alone[0] {
			alone = again
		}
	}
	for row, tc := range []struct {
		crowd string
		size  int
		send  func(key string)
	}{
		{"who announce it", 40, func(key string) { w.announced(key, "x") }},
		{"who fill purgatory", 40, func(key string) {
			w.in.syncs("x", announcement("held", key, "x"), state("held", key, "x", 1, strings.Repeat("9", 40)))
		}},
		{"who offer pull requests", 40, func(key string) {
			w.in.syncs("x", pull("pull", key, strings.Repeat("8", 40), alice, "x"))
		}},
		{"who name the owner as maintainer", 20, func(key string) {
			fan := announcement("fan", key, "x")
			fan.Tags = append(fan.Tags, nostr.Tag{"maintainers", alice})
			w.in.accept(finish(fan))
		}},
	} {
		for n := range tc.size {
			tc.send(stranger(row, n))
		}
		// One look for the objects that all of the pull requests name comes on top. What is still under
		// way for the crowd may add to a push, but not to every one.
		var among [2]int
		for range 5 {
			at++
			if among = push(at); among[0] <= alone[0]+1 {
				break
			}
		}
		if among[0] > alone[0]+1 || among[1] != alone[1] {
			t.Errorf("a push alone takes %d git processes and %d releases, and %d and %d among %d %s", alone[0], alone[1], among[0], among[1], tc.size, tc.crowd)
		}
	}
}

// counted returns a git that notes of every process that works in an owner's repositories, and how
// many there were.
func counted(t *testing.T, owner string) (program string, processes func() int) {
	t.Helper()
	notes := filepath.Join(t.TempDir(), "notes")
	program = gittest.Script(t, fmt.Sprintf(`case "$GIT_DIR" in */%s/*) echo "$1" >> '%s' ;; esac; exec git "$@"`, npub(owner), notes))
	return program, func() int {
		data, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("\n"))
	}
}

// TestAPushOfWhatIsDoneAlready: a client publishes its state first. What that names is here, so it
// is released and applied before the push comes, which then expects references as they were.
func TestAPushOfWhatIsDoneAlready(t *testing.T) {
	w := newWorld(t)
	c1 := w.pushFirst()
	const tag = "refs/tags/v1"
	zero := githttp.ZeroID
	push := func(capabilities string, commands ...string) string {
		w.Helper()
		commands[0] += "\x00report-status " + capabilities
		answer, err := http.Post(w.address(alice, "x")+"/git-receive-pack", "application/x-git-receive-pack-request",
			strings.NewReader(gittest.Pkt(commands...)+string(w.work.Pack("main"))))
		must(w, err)
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		must(w, err)
		return string(content)
	}
	tagged := event("tagged", nostr.KindState, alice, 1002, nostr.Tag{"d", "x"}, nostr.Tag{mainBranch, c1}, nostr.Tag{tag, c1}, nostr.Tag{"HEAD", "ref: refs/heads/main"})
	w.in.syncs("x", tagged)
	w.released(tagged)
	for _, capabilities := range []string{"", "atomic"} {
		for range 2 { // a client pushes to each of several addresses of one server
			if answer := push(capabilities, zero+" "+c1+" "+tag); !strings.Contains(answer, "ok "+tag) {
				t.Errorf("a tag that is there already: %q", answer)
			}
		}
	}
	if answer := push("", zero+" "+c1+" "+tag, zero+" "+c1+" refs/tags/v2"); !strings.Contains(answer, "ok "+tag) || !strings.Contains(answer, "ng refs/tags/v2 authorisation failed") {
		t.Errorf("a tag that is there and one that nothing allows: %q", answer)
	}
	if answer := push("atomic", zero+" "+c1+" "+tag, zero+" "+c1+" refs/tags/v2"); !strings.Contains(answer, "ng "+tag) || !strings.Contains(answer, "ng refs/tags/v2") {
		t.Errorf("the same, all or nothing: %q", answer)
	}
	untagged := state("untagged", alice, "x", 1003, c1)
	w.in.syncs("x", untagged)
	w.released(untagged)
	for _, capabilities := range []string{"", "atomic"} {
		if answer := push(capabilities, c1+" "+zero+" "+tag, zero+" "+c1+" "+mainBranch); !strings.Contains(answer, "ok "+tag) || !strings.Contains(answer, "ok "+mainBranch) {
			t.Errorf("a tag that has gone already: %q", answer)
		}
		if answer := push(capabilities, zero+" "+zero+" "+tag); !strings.Contains(answer, "ok "+tag) {
			t.Errorf("a tag that has gone already, and that the client does not see: %q", answer)
		}
	}
	// One that moved elsewhere meanwhile is refused, and no other.
	c2 := w.work.Commit("a", "2")
	next := event("next", nostr.KindState, alice, 1004, nostr.Tag{"d", "x"}, nostr.Tag{mainBranch, c2}, nostr.Tag{tag, c2})
	w.in.waits("x", next)
	if answer := push("", zero+" "+c2+" "+mainBranch, zero+" "+c2+" "+tag); !strings.Contains(answer, "ng "+mainBranch) || !strings.Contains(answer, "ok "+tag) {
		t.Errorf("a branch that moved elsewhere: %q", answer)
	}
}

// TestAPushIsOneLine of the log, with who pushed what by which event.
func TestAPushIsOneLine(t *testing.T) {
	w := newWorld(t)
	c1 := w.pushFirst()
	c2 := w.work.Commit("a", "2")
	next := state("next", alice, "x", 1002, c2)
	w.in.waits("x", next)
	commands := gittest.Pkt(c1 + " " + c2 + " " + mainBranch + "\x00report-status")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.address(alice, "x")+"/git-receive-pack", strings.NewReader(commands+string(w.work.Pack("main"))))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	r.Header.Set(proto.HeaderClient, "192.0.2.7")
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	answer.Body.Close()
	log, err := os.ReadFile(w.git + ".log")
	must(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "msg=pushed") && strings.Contains(line, "client=192.0.2.7 repository="+nostr.Npub(alice)+"/x references=refs/heads/main event="+next.ID) {
			return
		}
	}
	t.Errorf("no line of the push:\n%s", log)
}

// TestWhatCountsIsByHowMuchARepositoryGrew: a pack that is completed by objects that are here
// counts as what is stored, and of a push that git refuses nothing counts.
func TestWhatCountsIsByHowMuchARepositoryGrew(t *testing.T) {
	w := newWorld(t, "--daily-author-git-bytes=1MiB")
	w.pushFirst()
	large := gittest.Noise(700 << 10)
	w.pushState(alice, "x", 1002, w.work.Commit("noise", large))
	bad := pull("bad", carol, strings.Repeat("7", 40), alice, "x")
	w.in.waits("x", bad)
	for range 3 { // more than the budget of a day in all
		commands := gittest.Pkt(githttp.ZeroID + " " + strings.Repeat("7", 40) + " refs/nostr/" + bad.ID + "\x00report-status")
		answer, err := http.Post(w.address(alice, "x")+"/git-receive-pack", "application/x-git-receive-pack-request",
			strings.NewReader(commands+gittest.Noise(500<<10)))
		must(t, err)
		content, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !strings.Contains(string(content), "ng refs/nostr/"+bad.ID) || strings.Contains(string(content), "rate-limited") {
			t.Errorf("%q, %v", content, err)
		}
	}
	for n := range 3 {
		w.work.Git("checkout", "--quiet", "main")
		pr := pull(fmt.Sprint("pull ", n), bob, w.work.Commit("noise", large+fmt.Sprint(n)), alice, "x")
		w.work.Git("reset", "--quiet", "--hard", "HEAD~1")
		w.in.waits("x", pr)
		refs := pr.Tags[0][1] + ":refs/nostr/" + pr.ID
		if n < 2 { // the second is let in by what is left, which it overdraws
			w.pushes(alice, "x", refs)
		} else {
			w.refuses("rate-limited: as much git data of "+npub(bob), alice, "x", refs)
		}
	}
}
