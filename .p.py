import tempfile
from pathlib import Path
from tests.oracle.generator import generated
from tests.oracle.run import logged
from tests.oracle.expected import expected
c=generated(900258)
sink=logged(c,Path(tempfile.mkdtemp()))
for step,t in sink.tables('t0'):
    if step==1:
        for k,v in t.data.items(): print(k, v)
        print(t.places)
e=expected(c)
print(type(e)); 
for b in c.blocks[1].events['update'][0]: print({k:v for k,v in b.items() if k in('row','gid','fo','x','mask','lens','w')})
