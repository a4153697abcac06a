# shellcheck shell=bash
# Processes known by pid and start time (sourced, never run): a pid file that outlived
# its process must never lead to a stranger that got the same number.

# alive: not gone and no zombie; orphans may wait for PID 1 to reap them for a second
alive() {
  local st
  { read -r st <"/proc/$1/stat"; } 2>/dev/null || return 1
  st=${st##*) }
  [ "${st%% *}" != Z ]
}
start_time() {
  local st
  { read -r st <"/proc/$1/stat"; } 2>/dev/null || return 1
  st=${st##*) }
  # shellcheck disable=SC2086
  set -- $st
  echo "${20}"
}
# record FILE PID
record() { echo "$2 $(start_time "$2" || echo gone)" >"$1"; }
# recorded FILE: prints the pid while that very process lives
recorded() {
  local pid since
  { read -r pid since <"$1"; } 2>/dev/null || return 1
  [ "$(start_time "$pid")" = "$since" ] && alive "$pid" && echo "$pid"
}
