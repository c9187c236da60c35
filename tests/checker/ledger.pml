/* Drivers that move one ledger: prime, plan, commit by added files or by MERGE, folds; and crashes, lost replies and
   RESTOREs at any point. Written from the design, not from the code: an independent, small second opinion.

   Each version of the depot has one message. A microbatch takes the next versions, opens a batch for each message, and
   closes the batches that were open before; a tick only closes. A set of messages is a mask of bits. An atomic block is
   what one call to a table does. Names in capitals with #ifdef are bugs to plant (`bugs.toml`): each breaks a property. */

#ifndef DRIVERS
#define DRIVERS  2
#endif
#ifndef MESSAGES
#define MESSAGES 2 /* versions of the depot */
#endif
#ifndef WRITES
#define WRITES   4 /* versions of the ledger that are written before one driver is left alone */
#endif
#define SIZE     (WRITES + MESSAGES + 3)

mtype = { created, microbatch, fold, restored }
typedef Version {
  mtype kind;
  byte token;   /* in the progress row: of the last microbatch, and of no other one */
  byte number;  /* of the last microbatch; after a RESTORE the same numbers come again */
  byte reached; /* the position in the depot */
  byte live;    /* rows of open batches: their messages */
  byte gone;    /* tombstones */
  byte base;    /* the live rows that the last large fold wrote */
  byte closed   /* final rows */
}
Version log[SIZE];
byte latest, tokens, arrived;
byte alone; /* the driver that is left alone in the end, without faults; 0 before that */

/* The properties. */
bool each_message_once = true, nothing_closed_changes = true, on_the_primed_state = true, progress = true;

#define upto(n)       ((1 << (n)) - 1) /* the first n messages */
#define open_rows(v)  (log[v].live & ~log[v].gone)
#define same(column) (log[latest].column == log[primed].column)
#define may_write     (latest < (alone -> SIZE - 1 : WRITES))
#define undisturbed   (alone == _pid + 1)
#define may_go        (alone == 0 || undisturbed)

inline next_version(what, source) {
  latest++;
  log[latest].kind = what;             log[latest].token = log[source].token;
  log[latest].number = log[source].number; log[latest].reached = log[source].reached;
  log[latest].live = log[source].live; log[latest].gone = log[source].gone;
  log[latest].base = log[source].base; log[latest].closed = log[source].closed
}

/* Each message that was read is in one row, open or closed; what is closed stays, but for a RESTORE. */
inline check_version() {
  each_message_once = each_message_once && (open_rows(latest) | log[latest].closed) == upto(log[latest].reached);
  each_message_once = each_message_once && !(open_rows(latest) & log[latest].closed);
  nothing_closed_changes = nothing_closed_changes && (log[latest].kind == restored || !(log[latest - 1].closed & ~log[latest].closed));
  assert(nothing_closed_changes);
  assert(each_message_once)
}

/* One commit adds the rows of a microbatch that was planned on the version `primed`, with a token of its own. */
inline write_microbatch() {
  on_the_primed_state = same(token) && same(number) && same(reached) && same(closed) && open_rows(latest) == open_rows(primed);
  each_message_once = !(takes & (log[latest].live | log[latest].closed));
  nothing_closed_changes = !(closing & log[latest].closed);
  next_version(microbatch, latest - 1);
  tokens++;
  log[latest].token = tokens;
  log[latest].number = log[primed].number + 1;
  log[latest].reached = planned;
  log[latest].live = log[latest].live | takes;
  log[latest].gone = log[latest].gone | closing;
  log[latest].closed = log[latest].closed | closing;
  check_version();
  assert(on_the_primed_state)
}

/* A fold replaces the live rows of the primed version, the progress row too, by those that count. A large one takes
   all; a small one those since the last large one, and tombstones stay. */
inline write_fold(large) {
  next_version(fold, primed);
  log[latest].closed = log[latest - 1].closed;
  log[latest].live = open_rows(primed) | (large -> 0 : log[primed].base);
#ifdef FOLD_DROPS_TOMBSTONES
  log[latest].gone = 0;
#else
  log[latest].gone = (large -> 0 : log[primed].gone);
#endif
  log[latest].base = (large -> log[latest].live : log[primed].base);
  check_version()
}

/* The fences. A commit of files, and a fold, becomes the version after the primed one, or none. The source of a MERGE is
   empty unless the table has the primed token; Delta refuses it if anything but folds followed what it has read. */
#ifdef FILES_ON_ANY_VERSION
#define files_fit     true
#else
#define files_fit     (latest == primed)
#endif
#ifdef FOLD_UNFENCED
#define fold_fits     true
#else
#define fold_fits     (latest == primed)
#endif
#if defined(FENCE_OF_NUMBERS)
#define source_fits   (log[latest].number == log[primed].number)
#elif defined(FENCE_OF_POSITIONS)
#define source_fits   (log[latest].reached == log[primed].reached)
#else
#define source_fits   (log[latest].token == log[primed].token)
#endif
#ifdef MERGE_BESIDE_A_COMMIT
#define only_folds(v) true
#else
#define only_folds(v) (merged >= v || latest < v || log[v].kind == fold)
#endif
#define merge_fits    (only_folds(1) && only_folds(2) && only_folds(3) && only_folds(4) && only_folds(5) \
                       && only_folds(6) && only_folds(7) && only_folds(8) && only_folds(9))

inline decide() { takes = upto(planned) & ~upto(log[primed].reached); closing = open_rows(primed) }
inline forget() { primed = 0; planned = 0; merged = 0; takes = 0; closing = 0 }

active [DRIVERS] proctype driver() {
  byte primed, planned, merged, tries; /* versions of the ledger; the position that is planned */
  byte takes, closing;
  bool by_merge;
  if :: by_merge = false :: by_merge = true fi;

prime:
  atomic {
    may_go ->
    if
    :: undisturbed && log[latest].reached == arrived -> goto end /* it has read all */
    :: else
    fi;
    if
    :: undisturbed -> tries++; progress = tries <= MESSAGES + 1; assert(progress)
    :: else
    fi;
    primed = latest
  }
  if /* plan: the next versions of the depot, or a tick */
  :: atomic { may_go && log[primed].reached < arrived -> planned = log[primed].reached + 1;
       do
       :: planned < arrived -> planned++
       :: break
       od;
       decide() }
  :: atomic { may_go && !undisturbed && open_rows(primed) != 0 -> planned = log[primed].reached; decide() }
  :: atomic { may_go && !undisturbed && may_write && fold_fits && log[primed].live != log[primed].base -> write_fold(true); forget(); goto prime }
  :: atomic { may_go && !undisturbed && may_write && fold_fits && log[primed].live != log[primed].base -> write_fold(false); forget(); goto prime }
  :: atomic { may_go && (!undisturbed || log[primed].reached >= arrived) -> forget(); goto prime } /* crash, refused fold */
  fi;

commit:
  if /* a MERGE first reads the table */
  :: atomic { may_go && by_merge && source_fits -> merged = latest }
  :: atomic { may_go && by_merge && !source_fits -> goto refused }
  :: atomic { may_go && !by_merge -> merged = primed }
  :: atomic { may_go && !undisturbed -> forget(); goto prime }     /* crash */
  fi;
  if
  :: atomic { may_go && may_write && (by_merge -> merge_fits : files_fit) -> write_microbatch();
       if
       :: forget(); goto prime
#ifdef RETRY_UNREAD
       :: !undisturbed -> primed = latest; merged = 0; goto commit /* the reply is lost; only the fence is read again */
#endif
       fi }
  :: atomic { may_go && !(by_merge -> merge_fits : files_fit) -> goto refused }
  :: atomic { may_go && !undisturbed -> forget(); goto prime }     /* crash, or a failing write */
  fi;

refused:
#ifdef REFUSED_FOREVER
  atomic { merged = 0; if :: undisturbed -> tries++; progress = tries <= MESSAGES + 1; assert(progress) :: else fi; goto commit }
#else
  atomic { forget(); goto prime }
#endif

end:
  skip
}

/* The depot grows, somebody restores the ledger to any earlier version, and one driver is left alone at any time. */
active proctype world() {
  byte version;
  do
  :: atomic { arrived < MESSAGES -> arrived++ }
  :: atomic { latest > 0 && may_write -> version = latest - 1;
       do
       :: version > 0 -> version--
       :: break
       od;
       next_version(restored, version); version = 0; check_version() }
  :: atomic { alone = 1;
       do
       :: alone < DRIVERS -> alone++
       :: break
       od; break }
  od;
  timeout -> progress = log[latest].reached == arrived;
  assert(progress)
}
